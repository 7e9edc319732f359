"""Everything that would go wrong at night, asked for before the first epoch: with the numbers, and what to type."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tallystick.errors import SinkError
from tallystick.kafka.clients import confluent
from tallystick.kafka.transactions import END_TXN_VERSION, Transactions
from tallystick.sinks.base import JobContext
from tallystick.sinks.kafka import tokens
from tallystick.sinks.kafka.limits import Limits
from tallystick.sinks.kafka.timeouts import MARGIN_S, OPTION, needed_ms, transaction_timeout_ms

if TYPE_CHECKING:
    from tallystick.sinks.kafka.sink import Kafka

log = logging.getLogger("tallystick.kafka")

REACH_S = 10.0
ANSWER_S = 15.0
COORDINATOR_S = 30.0
WATCH_AT_LEAST_S, WATCH_AT_MOST_S = 2.0, 30.0


def preflight(sink: Kafka, job: JobContext) -> Limits:
    """Driver: `SinkError` with the next step if the sink cannot work as it is declared. Writes no record.

    Gives what the topic takes.
    """
    admin = Admin(sink)
    admin.need_answer()
    transactions = sink.driver.transactions
    _need_version(transactions)
    _need_timeout(sink, job, admin)
    _need_name(sink, job, transactions, admin)
    admin.need_token_topic()
    if sink.topic is not None:
        admin.need_topic(sink.topic)
    if job.moved:
        _need_alone(sink, job, transactions)
    return Limits() if sink.topic is None else admin.limits(sink.topic)


def _need_version(transactions: Transactions) -> None:
    found = transactions.newest_end_version()
    if found < END_TXN_VERSION:
        raise SinkError(
            f"kafka: the brokers end transactions with EndTxn version {found}, needed {END_TXN_VERSION}: with older "
            "ones a late request can end the wrong transaction. upgrade the brokers to Kafka 4.0 or newer"
        )


def _need_timeout(sink: Kafka, job: JobContext, admin: Admin) -> None:
    chosen, needed = transaction_timeout_ms(sink.settings, job.epoch_s), needed_ms(job.epoch_s)
    if chosen < needed:
        raise SinkError(
            f"kafka: {OPTION} is {chosen}, needed at least {needed}: the interval and the timeout of the checkpoint "
            f"({job.epoch_s:g} s together) and {MARGIN_S:g} s for the commit. raise it, or lower the timeout of the "
            "checkpoint"
        )
    allowed = admin.broker_setting("transaction.max.timeout.ms")
    if allowed is not None and chosen > int(allowed):
        raise SinkError(
            f"kafka: {OPTION} is {chosen}, but the brokers allow at most {allowed} (transaction.max.timeout.ms). "
            f"{_lower(sink, job, int(allowed))}, or raise the brokers' setting"
        )


def _lower(sink: Kafka, job: JobContext, allowed_ms: int) -> str:
    """What to change in the job so that its transactions are short enough."""
    if needed_ms(job.epoch_s) <= allowed_ms:
        return f"leave it out ({needed_ms(job.epoch_s)} is enough), or lower it to at most {allowed_ms}"
    longest_s = allowed_ms / 1000 - MARGIN_S - job.interval_s
    if longest_s <= 0:
        return f"lower the interval ({job.interval_s:g} s) and the timeout of the checkpoint ({job.timeout_s:g} s)"
    also = f" and {OPTION} to at most {allowed_ms}" if OPTION in sink.settings.options else ""
    return f"lower the checkpoint's timeout to at most {longest_s:g} s{also}"


def _need_name(sink: Kafka, job: JobContext, transactions: Transactions, admin: Admin) -> None:
    """The brokers must let this user begin transactions: a name of its own is initialised, and nothing written."""
    name = f"{sink.transaction_prefix}/preflight"
    deadline = time.monotonic() + COORDINATOR_S
    while error := transactions.initialise(name, transaction_timeout_ms(sink.settings, job.epoch_s)):
        if error in ("TransactionalIdAuthorizationFailedError", "ClusterAuthorizationFailedError"):
            raise SinkError(
                f"kafka: this user may not begin transactions ({error}). grant it: kafka-acls.sh --add "
                f"--allow-principal User:NAME --operation Write --operation Describe "
                f"--transactional-id {sink.transaction_prefix} --resource-pattern-type prefixed"
            )
        if error == "InvalidTransactionTimeoutError":
            raise SinkError(
                f"kafka: {OPTION} is {transaction_timeout_ms(sink.settings, job.epoch_s)}, more than the brokers allow "
                "(transaction.max.timeout.ms). lower the checkpoint's timeout, or raise the brokers' setting"
            )
        if time.monotonic() > deadline:
            raise SinkError(
                f"kafka: no transaction can be begun: {error} for {COORDINATOR_S:g} s. {admin.why_no_coordinator()}"
            )
        time.sleep(0.2)


def _need_alone(sink: Kafka, job: JobContext, transactions: Transactions) -> None:
    """The checkpoint is not where it was. If it is a copy and the original still runs, both would write."""
    if job.job_id is None:
        return
    watch_s = min(max(2 * job.interval_s, WATCH_AT_LEAST_S), WATCH_AT_MOST_S)
    log.warning(
        "the checkpoint was moved or copied to %s: looking for %g s whether another job uses it",
        job.checkpoint,
        watch_s,
    )
    before = transactions.activity(sink.prefix(job.job_id))
    time.sleep(watch_s)
    if transactions.activity(sink.prefix(job.job_id)) != before:
        raise SinkError(
            f"kafka: a living job uses transactions named {sink.prefix(job.job_id)}…: {job.checkpoint} is a copy of "
            "the checkpoint of a job that runs. stop that one first, or start this one with a new checkpoint"
        )


class Admin:
    """Questions about topics, rights and settings."""

    def __init__(self, sink: Kafka) -> None:
        self._kafka = confluent()
        self._admin = import_module("confluent_kafka.admin")
        self._token_topic = sink.token_topic
        quiet = {"log_level": "2", "enable.metrics.push": "false"}
        self._servers = sink.settings.servers
        self._said: list[Any] = []
        given = {**quiet, **sink.settings.librdkafka("connection"), "error_cb": self._said.append}
        self._client = self._admin.AdminClient(given)

    def need_answer(self) -> None:
        """Brokers may be just starting; but a password does not become right by waiting."""
        final = (self._kafka.KafkaError._AUTHENTICATION, self._kafka.KafkaError._SSL)
        deadline = time.monotonic() + REACH_S
        while True:
            try:
                self._client.list_topics(timeout=0.5)
                return
            except self._kafka.KafkaException as cause:
                self._client.poll(0)
                reasons = [error for error in self._said if error.code() in final]
                if reasons or time.monotonic() > deadline:
                    vague = self._kafka.KafkaError._ALL_BROKERS_DOWN
                    others = [error for error in self._said if error.code() != vague]
                    said = [*reasons, *others, cause.args[0]][0]
                    raise SinkError(
                        f"kafka: no answer from {self._servers}: {_words(said)}. needed a broker that is up and the "
                        "right security settings: look at servers and at security.protocol, sasl.* and ssl.* in the "
                        "options"
                    ) from cause

    def broker_setting(self, name: str) -> str | None:
        """A setting of the brokers; None if this user may not know."""
        found = self._broker_settings().get(name)
        return None if found is None else found.value

    def why_no_coordinator(self) -> str:
        brokers = len(self._brokers())
        copies = self.broker_setting("transaction.state.log.replication.factor")
        if copies is not None and int(copies) > brokers:
            return (
                f"the brokers want {copies} copies of their transaction log and there are {brokers}: set "
                f"transaction.state.log.replication.factor={brokers} and transaction.state.log.min.isr=1, or start more"
            )
        return "the transaction coordinator is not there: look at the brokers' log for __transaction_state"

    def need_token_topic(self) -> None:
        topic = self._token_topic
        if self._described(topic) is None:
            made = self._admin.NewTopic(topic, num_partitions=tokens.PARTITIONS, config=dict(tokens.SETTINGS))
            try:
                self._client.create_topics([made], request_timeout=ANSWER_S)[topic].result(ANSWER_S + 5)
            except self._kafka.KafkaException as cause:
                if cause.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    settings = " ".join(f"--config {name}={value}" for name, value in tokens.SETTINGS.items())
                    raise SinkError(
                        f"kafka: the topic {topic} for commit tokens is not there and could not be made: "
                        f"{_words(cause.args[0])}. make it: kafka-topics.sh --create --topic {topic} --partitions "
                        f"{tokens.PARTITIONS} {settings}"
                    ) from cause
        self._wait_for(topic)
        self._need_rights(topic, "WRITE", "READ")
        if "compact" not in self._topic_setting(topic, "cleanup.policy", "compact"):
            raise SinkError(
                f"kafka: the topic {topic} for commit tokens does not keep them: cleanup.policy is "
                f"{self._topic_setting(topic, 'cleanup.policy', '')}, needed compact: kafka-configs.sh --alter --topic "
                f"{topic} --add-config cleanup.policy=compact"
            )

    def need_topic(self, topic: str) -> None:
        if self._described(topic) is None:
            if (self.broker_setting("auto.create.topics.enable") or "false") == "true":
                return
            raise SinkError(
                f"kafka: the topic {topic} is not there, and the brokers do not make topics by themselves "
                f"(auto.create.topics.enable). make it: kafka-topics.sh --create --topic {topic} --partitions N"
            )
        self._need_rights(topic, "WRITE")

    def limits(self, topic: str) -> Limits:
        """What one topic takes; nothing is known of one that is made with the first record."""
        described = self._described(topic)
        if described is None:
            return Limits()
        most = self._topic_setting(topic, "max.message.bytes", "")
        return Limits(int(most) if most else None, len(described.partitions))

    def _need_rights(self, topic: str, *needed: str) -> None:
        described = self._described(topic)
        allowed = described.authorized_operations if described is not None else None
        if allowed is None:
            return
        names = {operation.name for operation in allowed}
        missing = [operation for operation in needed if operation not in names and "ALL" not in names]
        if missing:
            wanted = " ".join(f"--operation {operation.capitalize()}" for operation in needed)
            raise SinkError(
                f"kafka: this user has no right to {' and '.join(missing)} on topic {topic}, found "
                f"{', '.join(sorted(names)) or 'none'}. grant it: kafka-acls.sh --add --allow-principal "
                f"User:NAME {wanted} --topic {topic}"
            )

    def _described(self, topic: str) -> Any:
        asked = self._client.describe_topics(
            self._kafka.TopicCollection([topic]), include_authorized_operations=True, request_timeout=ANSWER_S
        )
        try:
            return asked[topic].result(ANSWER_S + 5)
        except self._kafka.KafkaException as cause:
            code = cause.args[0].code()
            if code == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code == self._kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise SinkError(
                    f"kafka: this user may not see topic {topic}. grant it: kafka-acls.sh --add --allow-principal "
                    f"User:NAME --operation Describe --operation Write --topic {topic}"
                ) from cause
            raise SinkError(
                f"kafka: no answer about topic {topic}: {_words(cause.args[0])}. start the job again when it is there"
            ) from cause

    def _wait_for(self, topic: str) -> None:
        """A topic that was just made is not known to every broker at once."""
        deadline = time.monotonic() + ANSWER_S
        while self._described(topic) is None:
            if time.monotonic() > deadline:
                raise SinkError(f"kafka: the topic {topic} was made, but no broker knows it after {ANSWER_S:g} s")
            time.sleep(0.05)

    def _broker_settings(self) -> dict[str, Any]:
        resource = self._admin.ConfigResource(self._admin.ConfigResource.Type.BROKER, str(self._brokers()[0]))
        return self._settings_of(resource)

    def _brokers(self) -> list[int]:
        """Those in service. A broker that could not show in time that it lives is out of it until its next heartbeat,
        and answers all the same."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                found = list(self._client.list_topics(timeout=ANSWER_S).brokers)
            except self._kafka.KafkaException as cause:
                raise SinkError(
                    f"kafka: no answer from {self._servers}: {_words(cause.args[0])}. start it again"
                ) from cause
            if found:
                return found
            if time.monotonic() > deadline:
                raise SinkError(
                    f'kafka: {self._servers} answers, but no broker is in service: look at its log for "Fencing '
                    'broker", and at the controllers'
                )
            time.sleep(0.2)

    def _topic_setting(self, topic: str, name: str, otherwise: str) -> str:
        found = self._settings_of(self._admin.ConfigResource(self._admin.ConfigResource.Type.TOPIC, topic)).get(name)
        return otherwise if found is None else str(found.value)

    def _settings_of(self, resource: Any) -> dict[str, Any]:
        try:
            asked = self._client.describe_configs([resource], request_timeout=ANSWER_S)
            found: dict[str, Any] = asked[resource].result(ANSWER_S + 5)
        except self._kafka.KafkaException as cause:
            log.info("settings of the brokers are not known: %s", _words(cause.args[0]))
            return {}
        return found


def _words(error: Any) -> str:
    return str(error.str()).rstrip(".")
