"""What a job is refused for before its first epoch: with the numbers, and what to do next."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from kafka_writers import new_name

from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere, started
from tallystick.errors import SinkError
from tallystick.records import Attempt, Outcome
from tallystick.servers import Kafka as Broker
from tallystick.servers.kafka_security import USERS
from tallystick.servers.ports import LOOPBACK, free_ports
from tallystick.sinks import Kafka
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.kafka import preflight

JOB = JobContext()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Rights for nobody, and no topics but those that somebody makes."""
    strict = {"auto.create.topics.enable": "false"}
    with started(Broker(tmp_path_factory.mktemp("kafka"), secured=True, settings=strict)) as server:
        yield server


@pytest.fixture(scope="module")
def lame(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Three copies of the transaction log, and one broker."""
    alone = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with started(Broker(tmp_path_factory.mktemp("kafka"), settings=alone)) as server:
        yield server


def refusal(sink: Kafka, job: JobContext = JOB) -> str:
    with pytest.raises(SinkError) as caught:
        sink.check(job)
    said = str(caught.value)
    print(said)
    return said


def login(name: str, password: str | None = None) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password or USERS[name],
    }


class Writer:
    """A user without rights, with a topic, a topic for tokens and a prefix that no other test uses."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = make_topic(broker.address)
        self.token_topic = new_name()
        self.prefix = new_name()

    def sink(self, **given: Any) -> Kafka:
        options = {**login("writer"), "linger.ms": 1}
        made = {"topic": self.topic, "token_topic": self.token_topic, "transaction_prefix": self.prefix, **given}
        return Kafka(self.broker.sasl_address, options=options, **made)

    def make_token_topic(self, **config: str) -> None:
        self.token_topic = make_topic(self.broker.address, partitions=1, **config)

    def allow(self, kind: ResourceType, name: str, *operations: ACLOperation, prefixed: bool = False) -> None:
        what = ResourcePattern(
            kind, name, ACLResourcePatternType.PREFIXED if prefixed else ACLResourcePatternType.LITERAL
        )
        acls = [ACL("User:writer", "*", operation, ACLPermissionType.ALLOW, what) for operation in operations]
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        try:
            assert admin.create_acls(acls)["failed"] == []
        finally:
            admin.close()

    def allow_transactions(self) -> None:
        self.allow(ResourceType.TRANSACTIONAL_ID, self.prefix, ACLOperation.WRITE, ACLOperation.DESCRIBE, prefixed=True)

    def allow_tokens(self) -> None:
        self.make_token_topic(cleanup_policy="compact")
        self.allow(ResourceType.TOPIC, self.token_topic, ACLOperation.WRITE, ACLOperation.READ)


@pytest.fixture
def writer(secured: Broker) -> Writer:
    return Writer(secured)


# -- time-outs --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_may_take_longer_than_brokers_hold_transactions(kafka: Broker | Elsewhere) -> None:
    said = refusal(Kafka(kafka.address, "any"), JobContext(interval_s=2, timeout_s=3600))
    assert "transaction.timeout.ms is 3632000, but the brokers allow at most 900000" in said
    assert "lower the checkpoint's timeout to at most 868 s, or raise the brokers' setting" in said


def test_a_timeout_above_the_brokers_maximum(kafka: Broker | Elsewhere) -> None:
    said = refusal(Kafka(kafka.address, "any", {"transaction.timeout.ms": 900_001}))
    assert "transaction.timeout.ms is 900001, but the brokers allow at most 900000" in said
    assert "leave it out (631000 is enough), or lower it to at most 900000" in said


def test_a_timeout_below_what_an_epoch_may_take(kafka: Broker | Elsewhere) -> None:
    said = refusal(Kafka(kafka.address, "any", {"transaction.timeout.ms": 60_000}), JobContext(timeout_s=40))
    assert "transaction.timeout.ms is 60000, needed at least 71000" in said
    assert "(41 s together) and 30 s for the commit. raise it, or lower the timeout of the checkpoint" in said
    Kafka(kafka.address, make_topic(kafka.address), {"transaction.timeout.ms": 71_000}).check(JobContext(timeout_s=40))


def test_brokers_that_do_not_tell_their_maximum(writer: Writer) -> None:
    """This user may not ask for settings; the refusal then comes with the first transaction."""
    writer.allow_transactions()
    said = refusal(writer.sink(), JobContext(timeout_s=3600))
    assert "transaction.timeout.ms is 3631000, more than the brokers allow" in said
    assert "lower the checkpoint's timeout, or raise the brokers' setting" in said


# -- rights -----------------------------------------------------------------------------------------------------------


def test_no_right_to_begin_transactions(writer: Writer) -> None:
    said = refusal(writer.sink())
    assert "this user may not begin transactions" in said
    assert f"--transactional-id {writer.prefix} --resource-pattern-type prefixed" in said


def test_no_right_to_make_the_token_topic(writer: Writer) -> None:
    writer.allow_transactions()
    said = refusal(writer.sink())
    assert writer.token_topic in said
    assert "kafka-topics.sh --create" in said or "kafka-acls.sh --add" in said


def test_a_token_topic_that_may_be_seen_but_not_made(writer: Writer) -> None:
    writer.allow_transactions()
    writer.allow(ResourceType.TOPIC, writer.token_topic, ACLOperation.WRITE, ACLOperation.READ, ACLOperation.DESCRIBE)
    said = refusal(writer.sink())
    assert f"the topic {writer.token_topic} for commit tokens is not there and could not be made" in said
    assert f"make it: kafka-topics.sh --create --topic {writer.token_topic} --partitions 8 --config cleanup" in said


def test_a_token_topic_that_may_not_be_read(writer: Writer) -> None:
    writer.allow_transactions()
    writer.make_token_topic(cleanup_policy="compact")
    writer.allow(ResourceType.TOPIC, writer.token_topic, ACLOperation.WRITE)
    said = refusal(writer.sink())
    assert f"no right to READ on topic {writer.token_topic}" in said
    assert "--operation Write --operation Read" in said


@pytest.mark.parametrize("rights", [(), (ACLOperation.READ,), (ACLOperation.DESCRIBE,)])
def test_no_right_to_write_to_the_topic(writer: Writer, rights: tuple[ACLOperation, ...]) -> None:
    writer.allow_transactions()
    writer.allow_tokens()
    if rights:
        writer.allow(ResourceType.TOPIC, writer.topic, *rights)
    said = refusal(writer.sink())
    assert f"no right to WRITE on topic {writer.topic}" in said or f"may not see topic {writer.topic}" in said
    assert "grant it: kafka-acls.sh --add --allow-principal User:NAME" in said
    assert f"--operation Write --topic {writer.topic}" in said


def test_with_the_rights_that_were_asked_for_it_works(writer: Writer) -> None:
    """No others: none on the cluster, none on a group."""
    writer.allow_transactions()
    writer.allow_tokens()
    writer.allow(ResourceType.TOPIC, writer.topic, ACLOperation.WRITE, ACLOperation.DESCRIBE)
    sink, job = writer.sink(), new_name()
    sink.check(JobContext(job_id=job))
    committable = prepared(sink, job)
    assert [one.committable for one in sink.open_transactions(job)] == [committable]
    assert sink.commit(committable) is Outcome.COMMITTED
    sink.settled(job, 0)
    wait_for_markers(writer.broker.address, sink.prefix(job))
    assert len(read_topic(writer.broker.address, writer.topic)) == 1


def test_a_right_that_is_taken_away_is_refused_and_not_lost(writer: Writer) -> None:
    writer.allow_tokens()
    writer.allow(ResourceType.TOPIC, writer.topic, ACLOperation.WRITE, ACLOperation.DESCRIBE)
    writer.allow_transactions()
    sink, job = writer.sink(), new_name()
    committable = prepared(sink, job)
    stranger = Kafka(writer.broker.sasl_address, writer.topic, {**login("nobody")}, token_topic=writer.token_topic)
    assert stranger.commit(committable) is Outcome.REFUSED
    with pytest.raises(SinkError, match="grant WRITE on the transactional ids"):
        stranger.abort(committable)
    assert sink.commit(committable) is Outcome.COMMITTED


def prepared(sink: Kafka, job: str, attempt: Attempt | None = None) -> Any:
    transaction = sink.begin_transaction(SliceContext(job, attempt or Attempt(0, 1), "out", 0, 1))
    sink.write(transaction, pa.RecordBatch.from_arrays([pa.array([b"row"], pa.binary())], ["value"]))
    return sink.pre_commit(transaction)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_missing_topic_where_nobody_makes_it(secured: Broker) -> None:
    topic = new_name()
    said = refusal(Kafka(secured.address, topic))
    assert f"the topic {topic} is not there, and the brokers do not make topics by themselves" in said
    assert f"make it: kafka-topics.sh --create --topic {topic} --partitions N" in said


def test_a_missing_topic_where_brokers_make_it(kafka: Broker | Elsewhere) -> None:
    sink, job = Kafka(kafka.address, new_name()), new_name()
    sink.check(JOB)
    assert sink.commit(prepared(sink, job)) is Outcome.COMMITTED
    wait_for_markers(kafka.address, sink.prefix(job))
    assert len(read_topic(kafka.address, str(sink.topic))) == 1


def test_the_token_topic_is_made_as_it_has_to_be(kafka: Broker | Elsewhere) -> None:
    topic = new_name()
    sink = Kafka(kafka.address, make_topic(kafka.address), token_topic=topic)
    sink.check(JOB)
    sink.check(JOB)
    admin = preflight.Admin(sink)
    assert admin._topic_setting(topic, "cleanup.policy", "") == "compact"
    assert admin._topic_setting(topic, "min.compaction.lag.ms", "") == "86400000"


def test_a_token_topic_that_does_not_keep_tokens(kafka: Broker | Elsewhere) -> None:
    topic = make_topic(kafka.address, cleanup_policy="delete")
    said = refusal(Kafka(kafka.address, make_topic(kafka.address), token_topic=topic))
    assert "cleanup.policy is delete, needed compact: kafka-configs.sh --alter" in said


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_brokers_that_have_no_transactions(lame: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "COORDINATOR_S", 2.0)
    said = refusal(Kafka(lame.address, make_topic(lame.address)))
    assert "no transaction can be begun" in said
    assert "the brokers want 3 copies of their transaction log and there are 1" in said
    assert "set transaction.state.log.replication.factor=1" in said


def test_brokers_that_are_too_old(kafka: Broker | Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker of ours is; so more is asked for than it has."""
    monkeypatch.setattr(preflight, "END_TXN_VERSION", 6)
    said = refusal(Kafka(kafka.address, "any"))
    assert "end transactions with EndTxn version 5, needed 6" in said
    assert "upgrade the brokers" in said


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.REACH_S <= 10
    monkeypatch.setattr(preflight, "REACH_S", 2.0)
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    began = time.monotonic()
    said = refusal(Kafka(address, "any"))
    took_s = time.monotonic() - began
    print(f"an unreachable broker is reported after {took_s:.1f} s")
    assert f"no answer from {address}: " in said
    assert "Connection refused" in said
    assert "needed a broker that is up" in said
    assert took_s < 5


@pytest.mark.parametrize("who", ["writer", "stranger"])
def test_wrong_credentials(secured: Broker, who: str) -> None:
    began = time.monotonic()
    said = refusal(Kafka(secured.sasl_address, "any", login(who, "guessed")))
    assert time.monotonic() - began < 8, "nobody waits for a password to become right"
    assert "uthentication failed" in said
    assert "guessed" not in said
    assert "look at servers and at security.protocol, sasl.* and ssl.* in the options" in said


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_protocol_that_the_listener_does_not_speak(
    secured: Broker, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "REACH_S", 2.0)
    said = refusal(Kafka(secured.sasl_address, "any", {"security.protocol": protocol}))
    assert "look at servers and at security.protocol" in said


def test_a_certificate_that_is_not_trusted(secured: Broker) -> None:
    said = refusal(Kafka(secured.ssl_address, "any", {"security.protocol": "SSL"}))
    assert "certificate verify failed" in said


def test_a_broker_that_takes_connections_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "REACH_S", 2.0)
    with socket.create_server((LOOPBACK, 0)) as silent:
        began = time.monotonic()
        said = refusal(Kafka(f"{LOOPBACK}:{silent.getsockname()[1]}", "any"))
        assert time.monotonic() - began < 5
    assert "needed a broker that is up" in said


# -- copies of a checkpoint -------------------------------------------------------------------------------------------


def test_a_copy_of_a_living_jobs_checkpoint(kafka: Broker | Elsewhere) -> None:
    sink, job = Kafka(kafka.address, make_topic(kafka.address), {"linger.ms": 1}), new_name()
    moved = JobContext(job_id=job, checkpoint="/copy", interval_s=0.1, moved=True)
    sink.check(JobContext(job_id=job))
    over = threading.Event()

    def live() -> None:
        for epoch in range(1000):
            sink.commit(prepared(sink, job, Attempt(epoch, 1)))
            if over.wait(0.2):
                return

    living = threading.Thread(target=live)
    living.start()
    try:
        said = refusal(sink, moved)
        assert f"a living job uses transactions named {sink.prefix(job)}" in said
        assert "/copy is a copy of the checkpoint" in said
        assert "stop that one first, or start this one with a new checkpoint" in said
        sink.check(JobContext(job_id=new_name(), interval_s=0.1, moved=True))
    finally:
        over.set()
        living.join()
    prepared(sink, job, Attempt(2000, 1))
    wait_until_quiet(sink, job)
    sink.check(moved)


def wait_until_quiet(sink: Kafka, job: str) -> None:
    """Until nobody makes producers in advance any more: the workers of a dead job are dead too, ours is alive."""
    seen: list[Any] = []
    while len(seen) < 2 or seen[-1] != seen[-2]:
        assert len(seen) < 30, "it does not become quiet"
        seen.append(sink.driver.transactions.activity(sink.prefix(job)))
        time.sleep(1.0)
