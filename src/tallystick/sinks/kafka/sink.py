"""The Kafka sink: transactions written on executors, ended by the driver, safe even after they timed out.

1.  *One transaction per slice*, written by a producer that is used once (`producer.py`) under a name bound to its
    worker (`names.py`). Its producer id, epoch and token are the committable: enough for any process to end it.
2.  *The driver ends it* with EndTxn version 5 (`tallystick.kafka.transactions`). Repeating that is harmless.
3.  *Doubt is settled by the token* (`tokens.py`), a record inside the same transaction. If the name was started anew,
    or forgotten, Kafka's answer no longer tells a committed transaction from an aborted one; what a reader of committed
    records sees in the token's place does.
4.  *Expired is not lost.* Kafka aborts what nobody ended in time. The answer says so, the protocol computes the slice
    again and writes it under a new attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Ending, Found, Writing
from tallystick.records import Attempt, Json, Mode, Outcome
from tallystick.sinks.base import JobContext, OpenTransaction, SliceContext, TransactionalSink, TransactionState
from tallystick.sinks.kafka import tokens
from tallystick.sinks.kafka.driver import Driver, driver_for
from tallystick.sinks.kafka.limits import UNCOMPRESSED, Limits
from tallystick.sinks.kafka.names import prefix_in, prefix_of
from tallystick.sinks.kafka.pool import Pool, pool_for
from tallystick.sinks.kafka.preflight import preflight
from tallystick.sinks.kafka.producer import Position, Producer, Records
from tallystick.sinks.kafka.producer_settings import ProducerSettings
from tallystick.sinks.kafka.shape import shaped
from tallystick.sinks.kafka.timeouts import transaction_timeout_ms
from tallystick.sinks.kafka.tokens import Fate, Token
from tallystick.sinks.letters import documents
from tallystick.sinks.refusals import Refusal, where, without

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

log = logging.getLogger("tallystick.kafka")

SEND = ("arrow", "objects")
TOKENLESS_S = 10.0
"""An open transaction without a token is about to get one, or its worker died in between."""
ABORT_PATIENCE_S = 30.0
UNTOLD = Attempt(0, 0)
"""That of a transaction without a token. The first generation is 1."""


@dataclass
class Transaction:
    """Executor: one slice on its way."""

    context: SliceContext
    producer: Producer
    pool: Pool
    rows: int = 0


@dataclass(frozen=True, repr=False)
class Kafka(TransactionalSink[Transaction]):
    """Records into one topic, or into the topic that each row names.

    ``servers`` as ``"host:port,…"``. Rows have Spark's own columns: ``value``, and if wanted ``key``, ``headers``,
    ``partition`` and, where no ``topic`` is given here, ``topic``. ``options`` are Kafka's own, with or without
    ``kafka.`` in front: ``{"compression.type": "lz4", "security.protocol": "SASL_SSL", …}``.

    ``transaction.timeout.ms`` is as long as an epoch may take, unless ``options`` set it: so long can readers of
    committed records be kept waiting by a job that died and is not started again. ``token_topic`` holds the commit
    tokens and is made if it is missing. ``transaction_prefix`` is how all names of transactions start, for access
    rules. ``send="objects"`` goes through confluent-kafka's Python objects instead of Arrow's memory.
    """

    facts = SinkFacts(
        "kafka",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "a Kafka transaction per slice, ended by the driver, with a commit token",
        "readers use isolation.level=read_committed; brokers 4.0 or newer",
    )
    together = True

    servers: str | Iterable[str]
    topic: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    token_topic: str = tokens.TOPIC
    transaction_prefix: str = "tallystick"
    send: str = "arrow"
    settings: KafkaSettings = field(init=False, compare=False)
    limits: Limits = field(init=False, compare=False, default_factory=Limits)

    def __post_init__(self) -> None:
        if self.topic is not None and (not isinstance(self.topic, str) or not self.topic):
            raise ConfigError(
                f"kafka: topic is {self.topic!r}, needed the name of a topic, or none to take it from the rows"
            )
        if self.send not in SEND:
            raise ConfigError(f"kafka: send is {self.send!r}, needed one of {', '.join(SEND)}")
        if not self.transaction_prefix or not self.token_topic:
            raise ConfigError("kafka: transaction_prefix and token_topic need a text that is not empty")
        if self.topic == self.token_topic:
            raise ConfigError(f"kafka: {self.topic} is for commit tokens alone: write the rows to another topic")
        object.__setattr__(self, "settings", KafkaSettings.of(self.servers, self.options))

    @property
    def target(self) -> str:
        return f"kafka:{self.settings.servers}/{self.topic or '*'}"

    def __repr__(self) -> str:
        return f"Kafka({self.settings!r}, topic={self.topic!r})"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        return shaped(schema, column, self.topic)

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.topic is None:
            raise ConfigError(f"{self.target} cannot be the sink for dead letters: name one topic for them")
        return pa.record_batch({name: column.cast(pa.binary()) for name, column in _letter(rows).items()})

    def check(self, job: JobContext) -> None:
        object.__setattr__(self, "limits", preflight(self, job))
        if job.job_id is not None:
            self.driver.markers.start(self.prefix(job.job_id))

    # -- executors --------------------------------------------------------------------------------------------------

    def begin_transaction(self, context: SliceContext) -> Transaction:
        settings = self.producer_settings(context.epoch_s)
        kind = (self.prefix(context.job_id), self.send, settings.key)
        pool = pool_for(kind[0], kind, lambda name: self._producer(settings, name), ahead=self.send == "objects")
        producer = pool.take(context.attempt)
        try:
            producer.begin()
            producer.send_token(self.token_topic, producer.name.encode(), Token.of(context).to_bytes())
        except BaseException:
            pool.done(producer, context.attempt)
            raise
        return Transaction(context, producer, pool)

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> Sequence[Refusal]:
        refused: Sequence[Refusal] = ()
        if transaction.context.dead_letters:
            refused = sorted({one.place: one for one in self._refused(rows)}.values())
            rows = without(rows, refused)
        for records in self._by_topic(rows):
            transaction.producer.send(records)
        transaction.rows += rows.num_rows
        return refused

    def _refused(self, rows: pa.RecordBatch) -> Iterator[Refusal]:
        """What the brokers, or librdkafka on its way there, would refuse; without dead letters they tell it best."""
        if self.topic is None:
            named = rows.column("topic")
            yield from where(named.is_null(), "the row has no topic (null)")
            yield from where(pc.equal(named, self.token_topic), f"{self.token_topic} is for commit tokens alone")
        settings = self.producer_settings(0)
        yield from self.limits.refused(rows, settings.record_bytes_max, settings.compression[0] not in UNCOMPRESSED)

    def pre_commit(self, transaction: Transaction) -> Json:
        """The second token goes out when all rows are acknowledged, or together with all of them."""
        producer = transaction.producer
        token = producer.finish(*self._last_words(transaction))
        transaction.pool.done(producer, transaction.context.attempt)
        return _committable(producer.name, producer.producer_id, producer.producer_epoch, token)

    def pre_commit_all(self, transactions: Sequence[Transaction]) -> Iterator[Json]:
        """Those that are small are all under way at once."""
        for transaction in transactions:
            transaction.producer.hurry(*self._last_words(transaction))
        yield from map(self.pre_commit, transactions)

    def _last_words(self, transaction: Transaction) -> tuple[str, bytes, Callable[[Position | None], bytes]]:
        """The second token: its topic, its key, and what makes it."""
        context, rows = transaction.context, transaction.rows
        name = transaction.producer.name.encode()
        return self.token_topic, name, lambda first: Token.of(context, rows=rows, first=first).to_bytes()

    def rollback(self, transaction: Transaction) -> None:
        transaction.producer.abort()
        transaction.pool.done(transaction.producer, transaction.context.attempt)

    def producer_settings(self, epoch_s: float) -> ProducerSettings:
        return ProducerSettings(self.settings, transaction_timeout_ms(self.settings, epoch_s), self.limits)

    def _producer(self, settings: ProducerSettings, name: str) -> Producer:
        if self.send == "arrow":
            from tallystick.sinks.kafka.arrow_producer import ArrowProducer

            return ArrowProducer(settings, name, self._topics())
        from tallystick.sinks.kafka.object_producer import ObjectProducer

        return ObjectProducer(settings, name, self._topics())

    def _topics(self) -> list[str]:
        return [self.token_topic, *([] if self.topic is None else [self.topic])]

    def _by_topic(self, rows: pa.RecordBatch) -> Iterable[Records]:
        """The rows of each topic, in their order."""
        if self.topic is not None:
            yield _records(self.topic, rows)
            return
        named = rows.column("topic")
        if named.null_count:
            raise RowRefusedError("kafka: a row has no topic (null): give it one, or name one topic for the sink")
        for topic in pc.unique(named).to_pylist():
            if topic == self.token_topic:
                raise RowRefusedError(
                    f"kafka: a row is for {topic}, which is for commit tokens alone: name another one"
                )
            yield _records(topic, rows.filter(pc.equal(named, topic)))

    # -- driver -----------------------------------------------------------------------------------------------------

    def commit(self, committable: Json) -> Outcome:
        return self.commit_all([committable], recovering=False)[0]

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        """All of them are under way at once; doubts are looked up afterwards, when none of ours is open any more."""
        try:
            driver = self.driver
            names = [one["name"] for one in committables]
            if self.topic is None and names:
                written = [place[0] for found in driver.transactions.describe(names) for place in found.partitions]
                driver.markers.wrote(prefix_in(names[0]), written)
            answers = driver.transactions.end_soon([_ending(one, commit=True) for one in committables])
            driver.markers.ended(names)
            pairs = zip(committables, answers, strict=True)
            return [self._outcome(driver, committable, answer) for committable, answer in pairs]
        except SinkError as failure:
            log.warning("nothing is known about %d commits: %s", len(committables), failure)
            driver_for.forget(self.settings)
            return [Outcome.UNKNOWN] * len(committables)

    def _outcome(self, driver: Driver, committable: Json, answer: Answer) -> Outcome:
        if answer in (Answer.FENCED, Answer.FORGOTTEN):
            fate = driver.tokens(self.token_topic).fate(Position(*committable["token"]), committable["name"])
            return _FATES[fate]
        return _OUTCOMES[answer]

    def abort(self, committable: Json) -> None:
        """Harmless if it has ended. `SinkError` if no broker answers: it stays open then, and is found again."""
        ending = _ending(committable, commit=False)
        driver = self.driver
        [answer] = driver.transactions.end_soon([ending], ABORT_PATIENCE_S)
        driver.markers.ended([ending.name])
        if answer is Answer.LATER:
            raise SinkError(f"kafka: {ending.name} could not be rolled back: no answer for {ABORT_PATIENCE_S:g} s")
        if answer is Answer.DENIED:
            raise SinkError(
                f"kafka: ending the transaction {ending.name} is not allowed: grant WRITE on the transactional ids "
                f"that start with {self.transaction_prefix!r}"
            )

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        driver = self.driver
        found = driver.transactions.open(self.prefix(job_id))
        places = {place for one in found for place in one.partitions if place[0] == self.token_topic}
        writing = driver.transactions.writing(places)
        for one in found:
            at = next(
                (
                    (Position(place[1], state.first_offset), state)
                    for place in one.partitions & places
                    for state in writing.get(place, ())
                    if (state.producer_id, state.producer_epoch) == (one.producer_id, one.producer_epoch)
                ),
                None,
            )
            described = self._opened(driver, one, at)
            if described is not None:
                yield described

    def _opened(self, driver: Driver, one: Found, at: tuple[Position, Writing] | None) -> OpenTransaction | None:
        age_s = max(0.0, time.time() - one.started_ms / 1000)
        token = driver.tokens(self.token_topic).read(at[0], one.name) if at is not None else None
        if at is None or token is None:
            if age_s < TOKENLESS_S:
                return None
            nowhere = _committable(one.name, one.producer_id, one.producer_epoch, Position(-1, -1))
            return OpenTransaction(UNTOLD, TransactionState.BEGUN, nowhere, one.name, age_s=age_s)
        state = TransactionState.PRE_COMMITTED if at[1].last_sequence >= 1 else TransactionState.BEGUN
        committable = _committable(one.name, one.producer_id, one.producer_epoch, at[0])
        return OpenTransaction(token.attempt, state, committable, one.name, token.slice, age_s)

    def settled(self, job_id: str, epoch: int) -> None:
        """After this the names of that epoch are used again. What else is left over is looked for now and then: it is
        rare, and does no harm but to keep readers waiting for a while."""
        prefix, driver, since = self.prefix(job_id), self.driver, time.time()
        driver.markers.wrote(prefix, self._topics())
        driver.markers.settle(prefix)
        driver.now_and_then(prefix, lambda: self._sweep(job_id, epoch, since))

    def _sweep(self, job_id: str, epoch: int, since: float) -> None:
        """Abort what is open of that epoch and before. The next one may be on its way: a transaction without a token
        counts only if it had none for long when the epoch was settled."""
        try:
            for found in self.open_transactions(job_id):
                told = found.attempt != UNTOLD
                if found.attempt.epoch <= epoch and (told or (found.age_s or 0.0) > TOKENLESS_S + time.time() - since):
                    self.abort(found.committable)
        except Exception as failure:  # noqa: BLE001 - beside an epoch, the connection may be closed under it
            log.warning(
                "kafka: leftovers of epoch %d and before were not looked for, the next time: %r", epoch, failure
            )

    @property
    def driver(self) -> Driver:
        return driver_for(self.settings)

    def prefix(self, job_id: str) -> str:
        return prefix_of(self.transaction_prefix, job_id, self.topic)


_OUTCOMES = {
    Answer.DONE: Outcome.COMMITTED,
    Answer.GONE: Outcome.EXPIRED,
    Answer.LATER: Outcome.RETRY_LATER,
    Answer.DENIED: Outcome.REFUSED,
}
_FATES = {Fate.COMMITTED: Outcome.ALREADY_COMMITTED, Fate.ABORTED: Outcome.EXPIRED, Fate.OPEN: Outcome.UNKNOWN}


def _committable(name: str, producer_id: int, producer_epoch: int, token: Position) -> Json:
    return {"name": name, "producer": [producer_id, producer_epoch], "token": [token.partition, token.offset]}


def _letter(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"key": rows.column("id"), "value": documents(rows)}


def _ending(committable: Json, commit: bool) -> Ending:
    producer_id, producer_epoch = committable["producer"]
    return Ending(committable["name"], producer_id, producer_epoch, commit)


def _records(topic: str, rows: pa.RecordBatch) -> Records:
    have = {name: rows.column(name) for name in rows.schema.names if name != "topic"}
    return Records(topic, have["value"], have.get("key"), have.get("partition"), have.get("headers"))
