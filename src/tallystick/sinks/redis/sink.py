"""The Redis sink: rows staged in Redis itself, applied by scripts that change rows and progress at once.

1.  *Staged on executors.* A slice is one hash in Redis that holds its rows in chunks (`rows.py`), under keys of ours.
2.  *Applied by the driver*, chunk by chunk, each by one atomic script that runs the commands and moves the progress
    token (`scripts.py` has the argument). A slice of up to `rows.CHUNK_ROWS` rows appears at one instant. Larger ones
    appear in steps of that size: a script that ran for long would keep every other client waiting.
3.  *Guarded by epoch and generation.* A driver or task of an attempt that is over is refused.
4.  *One server.* Scripts touch staged rows and targets at once, so a Redis Cluster is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Attempt, Json, Mode, Outcome
from tallystick.sinks.base import JobContext, OpenTransaction, SliceContext, TransactionalSink, TransactionState
from tallystick.sinks.letters import documents
from tallystick.sinks.redis import scripts
from tallystick.sinks.redis.client import client_for, place_of, redis, words
from tallystick.sinks.redis.keys import Keys
from tallystick.sinks.redis.preflight import preflight
from tallystick.sinks.redis.rows import CHUNK_ROWS, COMMANDS, FIELDS, chunks, prefixed, refusal, screen, shown
from tallystick.sinks.redis.shape import shaped
from tallystick.sinks.refusals import Refusal, screened, without

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

log = logging.getLogger("tallystick.redis")

TYPES = {"set": "", "incrby": "string", "hset": "hash", "zadd": "zset", "xadd": "stream"}
"""What a key must hold for a command, if it is there; SET takes any."""
LETTERS = "dead-letters"
"""The key of the stream that dead letters go to with ``xadd``, after the prefix."""
AT_ONCE = 32
"""Chunks under way in one pipeline."""


@dataclass
class Transaction:
    """Executor: one slice on its way."""

    context: SliceContext
    keys: Keys
    added: int = 0


@dataclass(frozen=True, repr=False)
class Redis(TransactionalSink[Transaction]):
    """One command for each row: ``set``, ``hset``, ``incrby``, ``zadd`` or ``xadd``.

    ``url`` as ``"redis://host:6379/0"``, or ``rediss://`` for TLS; ``options`` are redis-py's own beside it, such as
    ``password`` and ``ssl_ca_certs``. Rows have a column ``key``, which comes after ``key_prefix``, and beside it:
    ``value`` for ``set`` and ``incrby`` (a whole number), ``score`` and ``member`` for ``zadd``; for ``hset`` and
    ``xadd`` every other column is a field, left out where it is null.

    ``prefix`` is how the keys of staged rows start, for access rules.
    """

    facts = SinkFacts(
        "redis",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "staged per slice in Redis, applied by atomic scripts with a progress token, guarded by epoch and generation",
        "one server, 7.0 or newer, no cluster; appendonly yes and appendfsync always, else a crash may lose what it "
        "confirmed; no eviction of all keys",
    )

    url: str
    command: str = "set"
    key_prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = "tallystick"
    place: Mapping[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.command not in COMMANDS:
            raise ConfigError(f"redis: command is {self.command!r}, needed one of {', '.join(COMMANDS)}")
        if not isinstance(self.key_prefix, str) or not isinstance(self.prefix, str) or not self.prefix:
            raise ConfigError("redis: key_prefix and prefix need a text; prefix one that is not empty")
        if self.key_prefix.startswith(f"{self.prefix}:"):
            raise ConfigError(
                f"redis: keys that start with {self.prefix}: are for staged rows: choose another key_prefix"
            )
        object.__setattr__(self, "place", place_of(self.url, self.options))

    @property
    def server(self) -> str:
        place = {**self.place, **{name: self.options[name] for name in ("host", "port", "db") if name in self.options}}
        where = place.get("path") or f"{place.get('host', 'localhost')}:{place.get('port', 6379)}"
        return f"{where}/{place.get('db', 0)}"

    @property
    def target(self) -> str:
        return f"redis:{self.server}/{self.command} {self.key_prefix}*"

    def __repr__(self) -> str:
        return f"Redis({self.server}, command={self.command!r}, key_prefix={self.key_prefix!r})"

    @property
    def client(self) -> Any:
        return client_for(self.url, self.options)

    def keys(self, job_id: str, name: str = "") -> Keys:
        return Keys.of(self.prefix, job_id, f"{self.command} {self.key_prefix}", name)

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        return shaped(schema, column, self.command)

    def check(self, job: JobContext) -> None:
        preflight(self)

    # -- executors --------------------------------------------------------------------------------------------------

    def begin_transaction(self, context: SliceContext) -> Transaction:
        keys = self.keys(context.job_id, context.name)
        epoch, generation = context.attempt.epoch, context.attempt.generation
        newer = self._run(scripts.BEGIN, [keys.slice, keys.guard, keys.open], [epoch, generation, keys.name])
        if newer:
            raise SinkError(
                f"redis: epoch {epoch} of generation {generation} comes too late: epoch {int(newer[0])} of generation "
                f"{int(newer[1])} has begun at {self.server}. another driver has taken over, or the checkpoint is an "
                "old copy: use a new one then"
            )
        return Transaction(context, keys)

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.command not in ("set", *FIELDS):
            raise ConfigError(f"{self.target} cannot be the sink for dead letters: use command='xadd', 'hset' or 'set'")
        if self.command == "set":
            return pa.record_batch({"key": rows.column("id"), "value": documents(rows)})
        fields = {name: rows.column(name).cast(pa.string()) for name in rows.schema.names if name != "id"}
        keys = rows.column("id") if self.command == "hset" else pa.array([LETTERS] * rows.num_rows, pa.string())
        return pa.record_batch({"key": keys, **({} if self.command == "hset" else {"id": rows.column("id")}), **fields})

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> Sequence[Refusal]:
        found = screen(rows, self.command, self.key_prefix)
        refused = screened(transaction.context, found, lambda one: refusal(rows, one))
        if transaction.context.dead_letters and TYPES[self.command]:
            refused = screened(transaction.context, [*refused, *self._misfits(rows)], lambda one: refusal(rows, one))
        pending: list[bytes] = []
        for chunk in chunks(without(rows, refused), self.command, self.key_prefix):
            pending.append(chunk)
            if len(pending) == AT_ONCE:
                self._add(transaction, pending)
                pending = []
        if pending:
            self._add(transaction, pending)
        return refused

    def _misfits(self, rows: pa.RecordBatch) -> Iterator[Refusal]:
        """Rows whose key holds something that the command cannot be done to: asked for, each key once."""
        keys = prefixed(rows, self.key_prefix)
        distinct = [key for key in keys.unique().to_pylist() if key is not None]
        parts = [distinct[first : first + CHUNK_ROWS] for first in range(0, len(distinct), CHUNK_ROWS)]
        answers = self._run_all(scripts.LOOK, [(part, [TYPES[self.command]]) for part in parts])
        asked = (pair for part, whys in zip(parts, answers, strict=True) for pair in zip(part, whys, strict=True))
        wrong = {key: why.decode() for key, why in asked if why}
        if wrong:
            for place, key in enumerate(keys.to_pylist()):
                if key in wrong:
                    yield Refusal(place, f"{self.command} cannot be done to the key {shown(key)}: {wrong[key]}")

    def _add(self, transaction: Transaction, pending: Sequence[bytes]) -> None:
        calls = [
            ([transaction.keys.slice], [transaction.added + number, chunk, TYPES[self.command]])
            for number, chunk in enumerate(pending)
        ]
        for status, *rest in self._run_all(scripts.ADD, calls):
            if status == b"refused":
                raise RowRefusedError(
                    f"redis: {self.command} cannot be done to the key {shown(rest[0])}: {rest[1].decode()}. nothing of "
                    "the epoch was published. remove the key or choose another, then start the job again"
                )
            if status != b"added":
                raise self._rolled_back(transaction)
        transaction.added += len(pending)

    def pre_commit(self, transaction: Transaction) -> Json:
        sealed = self._run(scripts.SEAL, [transaction.keys.slice], [transaction.added])
        if sealed == b"missing":
            raise SinkError(f"redis: {transaction.keys.slice} lacks some of its {transaction.added} chunks")
        if sealed != b"sealed":
            raise self._rolled_back(transaction)
        return _committable(transaction.keys, transaction.added)

    def rollback(self, transaction: Transaction) -> None:
        try:
            self._run(scripts.DROP, [transaction.keys.slice, transaction.keys.open], [transaction.keys.name])
        except SinkError as failure:
            log.warning("%s is rolled back later, by the driver: %s", transaction.keys.slice, failure)

    def _rolled_back(self, transaction: Transaction) -> SinkError:
        return SinkError(f"redis: {transaction.keys.slice} was rolled back, by a newer driver, while it was written")

    # -- driver -----------------------------------------------------------------------------------------------------

    def commit(self, committable: Json) -> Outcome:
        keys, count = Keys(committable["base"], committable["name"]), int(committable["chunks"])
        attempt = keys.attempt
        try:
            first = self.client.hmget(keys.slice, "sealed", "next")
            if first[0] is not None and int(first[1]) >= int(first[0]):
                return Outcome.ALREADY_COMMITTED
            start = int(first[1] or 0)
            for number in range(start, max(count, start + 1), AT_ONCE):
                some = range(number, min(number + AT_ONCE, max(count, start + 1)))
                outcome = self._apply(keys, attempt, some)
                if outcome is not None:
                    return outcome
        except redis().exceptions.RedisError as error:
            log.warning("%s is asked for again later: %s", keys.slice, words(error, self.url, self.options))
            return Outcome.UNKNOWN
        return Outcome.COMMITTED

    def _apply(self, keys: Keys, attempt: Attempt, numbers: Iterable[int]) -> Outcome | None:
        """Some chunks, in order; None if they are all applied, now or before."""
        where = [keys.slice, keys.guard]
        calls = [(where, [number, attempt.epoch, attempt.generation, self.command]) for number in numbers]
        for status, *rest in self._evaluate(scripts.APPLY, calls):
            if status in (b"applied", b"done"):
                continue
            if status == b"gone" or (status == b"fenced" and int(rest[0]) == 0):
                return Outcome.EXPIRED
            said = b" ".join(rest[1:]).decode(errors="replace") if status == b"refused" else status.decode()
            which = f", at the key {shown(rest[0])}" if status == b"refused" else ""
            log.error("%s is decided, but %s refuses it%s: %s", keys.slice, self.target, which, said)
            return Outcome.REFUSED
        return None

    def abort(self, committable: Json) -> None:
        keys = Keys(committable["base"], committable["name"])
        self._run(scripts.DROP, [keys.slice, keys.open], [keys.name])

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return [found for found, _ in self._listed(job_id) if found is not None]

    def settled(self, job_id: str, epoch: int) -> None:
        """What is applied is remembered until the next epoch is settled: see `spark/sweep.py`."""
        try:
            over = [
                ([keys.slice, keys.open], [keys.name])
                for found, keys in self._listed(job_id)
                if keys.attempt.epoch < epoch or (keys.attempt.epoch == epoch and found is not None)
            ]
            if over:
                self._run_all(scripts.DROP, over)
        except SinkError as failure:
            log.warning("leftovers of epoch %d and before were not looked for, the next time: %s", epoch, failure)

    def _listed(self, job_id: str) -> list[tuple[OpenTransaction | None, Keys]]:
        """Every slice that Redis holds, as an open transaction unless it is applied."""
        listed = self.keys(job_id)
        try:
            begun: dict[bytes, bytes] = self.client.hgetall(listed.open)
            pipeline = self.client.pipeline(transaction=False)
            pipeline.time()
            every = [self.keys(job_id, name.decode()) for name in sorted(begun)]
            for keys in every:
                pipeline.hmget(keys.slice, "sealed", "next")
            (now_s, _), *states = pipeline.execute()
        except redis().exceptions.RedisError as cause:
            raise SinkError(f"redis: {self.server}: {words(cause, self.url, self.options)}") from cause
        return [
            (_opened(keys, sealed, following, now_s - int(begun[keys.name.encode()])), keys)
            for keys, (sealed, following) in zip(every, states, strict=True)
        ]

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return self._run_all(script, [(keys, arguments)])[0]

    def _run_all(self, script: str, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        try:
            return self._evaluate(script, calls)
        except redis().exceptions.RedisError as cause:
            raise SinkError(f"redis: {self.server}: {words(cause, self.url, self.options)}") from cause

    def _evaluate(self, script: str, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        """In one round trip. A script that the server does not know yet is sent with the calls: they may repeat."""
        loaded = self.client.register_script(script)
        pipeline = self.client.pipeline(transaction=False)
        for keys, arguments in calls:
            loaded(keys=keys, args=arguments, client=pipeline)
        answers: list[Any] = pipeline.execute()
        return answers


def _opened(keys: Keys, sealed: bytes | None, following: bytes | None, age_s: float) -> OpenTransaction | None:
    if sealed is not None and following is not None and int(following) >= int(sealed):
        return None
    state = TransactionState.BEGUN if sealed is None else TransactionState.PRE_COMMITTED
    committable = _committable(keys, None if sealed is None else int(sealed))
    return OpenTransaction(keys.attempt, state, committable, keys.name, keys.number, float(max(0, age_s)))


def _committable(keys: Keys, count: int | None) -> Json:
    return {"base": keys.base, "name": keys.name, "chunks": count}
