"""A real broker: serves, keeps records and open transactions over a kill, and leaves no process behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from kafka_clients import consume, new_topic, produce, producer, send, transaction_state

from real_servers import Elsewhere, started
from tallystick.errors import SetupError
from tallystick.jvm import resolve
from tallystick.servers import Kafka, Way
from tallystick.servers.jvm_archive import archive_options, ensure_archive, find_archive
from tallystick.servers.kafka_wire import serving_brokers
from tallystick.servers.ports import LOOPBACK, free_ports


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One that may be killed, unlike the one that all tests share."""
    with started(Kafka(tmp_path_factory.mktemp("kafka"))) as server:
        yield server


def test_the_shared_broker_serves(kafka: Kafka | Elsewhere) -> None:
    topic = new_topic()
    produce(kafka.address, topic, ["a", "b"])
    assert consume(kafka.address, topic) == ["a", "b"]


def test_a_transaction_is_committed_and_another_one_aborted(broker: Kafka) -> None:
    topic = new_topic()
    for number, end in enumerate(("commit_transaction", "abort_transaction", "commit_transaction")):
        made = producer(broker.address, transactional_id=f"{topic}-{number}")
        made.init_transactions(30)
        made.begin_transaction()
        send(made, topic, [f"{number}-{end}"])
        getattr(made, end)(30)
    assert consume(broker.address, topic) == ["0-commit_transaction", "2-commit_transaction"]


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_records_and_a_prepared_transaction_outlive_the_broker(broker: Kafka, ending: str) -> None:
    topic = new_topic()
    produce(broker.address, topic, ["kept"])
    made = producer(broker.address, transactional_id=topic)
    made.init_transactions(30)
    made.begin_transaction()
    send(made, topic, ["prepared"])
    address, pid = broker.address, broker.processes[0].pid
    assert pid is not None
    getattr(broker, ending)()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not broker.ready()
    broker.start()
    assert broker.address == address
    assert transaction_state(broker.address, topic)[0] == "Ongoing"
    assert consume(broker.address, topic) == ["kept"]
    made.commit_transaction(30)
    assert consume(broker.address, topic) == ["kept", "prepared"]


def test_another_process_finds_it_by_its_folder(broker: Kafka) -> None:
    found = Kafka(broker.folder)
    assert found.running
    assert found.address == broker.address
    assert found.ready()
    with pytest.raises(SetupError, match=r"kafka runs already in .*, as process"):
        found.start()
    assert broker.running


def test_what_its_log_and_its_version_say(broker: Kafka) -> None:
    assert broker.version == "4.3.1"
    log = broker.processes[0].log.read_text()
    assert f"Kafka version: {broker.version}" in log
    assert "Kafka Server started" in log


def test_clients_of_the_proxy_stay_behind_it(broker: Kafka) -> None:
    topic = new_topic()
    with broker.proxy() as proxy:
        assert proxy.address == broker.proxied_address
        produce(proxy.address, topic, ["by proxy"])
        made = producer(proxy.address, message_timeout_ms=1000)
        proxy.cut()
        with pytest.raises(KafkaException, match="_MSG_TIMED_OUT"):
            send(made, topic, ["into the void"])
        assert consume(broker.address, topic) == ["by proxy"], "the plain listener knows nothing of the cut"
        proxy.heal()
        assert consume(proxy.address, topic) == ["by proxy"]


def test_an_acknowledgement_is_lost_though_the_record_got_through(broker: Kafka) -> None:
    topic = new_topic()
    produce(broker.address, topic, ["first"])
    with broker.proxy() as proxy:
        made = producer(proxy.address, message_timeout_ms=2000, message_send_max_retries=0)
        send(made, topic, ["second"])
        proxy.hold(Way.TO_CLIENT)
        with pytest.raises(KafkaException):
            send(made, topic, ["third"])
    assert consume(broker.address, topic) == ["first", "second", "third"]


def test_settings_are_those_of_the_object_started(tmp_path: Path) -> None:
    with started(Kafka(tmp_path, settings={"auto.create.topics.enable": "false"})) as strict:
        with pytest.raises(KafkaException):
            produce(strict.address, new_topic(), ["nowhere"], message_timeout_ms=1000)
        strict.stop()
        changed = Kafka(tmp_path).start()
        try:
            topic = new_topic()
            produce(changed.address, topic, ["somewhere"])
            assert consume(changed.address, topic) == ["somewhere"]
        finally:
            changed.stop()


def test_a_wrong_setting_shows_the_log_and_leaves_nothing_running(tmp_path: Path) -> None:
    server = Kafka(tmp_path, settings={"num.io.threads": "none"})
    with pytest.raises(SetupError, match=r"(?s)kafka could not start: .* the end of .*num\.io\.threads"):
        server.start()
    assert not server.running


def test_an_archive_that_cannot_be_used_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jars = resolve("kafka")
    cache = tmp_path / "cache"
    (cache / "jvm").mkdir(parents=True)
    (cache / "jvm" / "kafka").symlink_to(jars[0].parent)
    monkeypatch.setenv("TALLYSTICK_CACHE", str(cache))
    seen = resolve("kafka")

    def leave_nothing(scratch: Path, options: list[str]) -> None:
        assert scratch.is_dir()
        assert any(option.startswith("-XX:ArchiveClassesAtExit=") for option in options)

    ensure_archive("kafka", seen, leave_nothing)
    assert "no archive for faster starts of kafka was made" in caplog.text
    assert archive_options("kafka", seen) == []
    ensure_archive("kafka", seen, lambda *_: pytest.fail("what failed once is not tried at every start"))
    (marker,) = cache.glob("kafka-*.refused")

    garbage = cache / f"{marker.stem}-7.jsa"
    garbage.write_bytes(b"garbage")
    assert find_archive("kafka", seen) == garbage
    with started(Kafka(tmp_path / "broker")) as server:
        assert server.ready()
    garbage.write_bytes(b"cut")
    assert find_archive("kafka", seen) is None, "an archive of another size was cut off"


def test_what_does_not_answer_in_kafkas_way_is_not_ready() -> None:
    assert serving_brokers(free_ports(1)[0]) == []
    with socket.create_server((LOOPBACK, 0)) as silent:
        assert serving_brokers(silent.getsockname()[1], timeout_s=0.2) == []
