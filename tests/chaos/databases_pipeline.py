"""The job that kills and faults hit: one epoch into two tables of PostgreSQL and two kinds of keys of Redis.

Run as ``python databases_pipeline.py PLAN``, with the plan as JSON. The job can be held as in `kafka_pipeline.py`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka_pipeline import Holds, hold_at_kill_points

import tallystick as ts
from postgresql_tables import ask
from redis_keys import client
from tallystick.demo.job import SPARK

NAME = "database-faults"
KEYS = 7
PER_EPOCH = 60


@dataclass(frozen=True)
class Plan:
    """``name`` begins the names of tables and keys."""

    folder: str
    postgresql: str
    redis: str
    name: str
    epochs: int
    mode: str = "exactly-once"
    restarts: int = 0
    holds: tuple[str, ...] = ()
    master: str = "local[2]"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        return cls(**{**value, "holds": tuple(value["holds"])})


def record(number: int) -> dict[str, object]:
    return {"id": number, "key": f"k{number % KEYS}"}


def counts(plan: Plan) -> ts.Output:
    counters = ts.sinks.Redis(plan.redis, "incrby", key_prefix=f"{plan.name}:count:")
    return ts.Output(counters, "counts", select=["key", "1 AS value"])


def outputs(plan: Plan) -> list[ts.Output]:
    postgresql, redis = plan.postgresql, plan.redis
    latest = ts.sinks.PostgreSQL(postgresql, f"{plan.name}_latest", mode="upsert", key=["key"])
    stream = ts.sinks.Redis(redis, "xadd", key_prefix=f"{plan.name}:")
    return [
        ts.Output(ts.sinks.PostgreSQL(postgresql, f"{plan.name}_events"), "events"),
        ts.Output(latest, "latest", where="id % 2 = 0"),
        counts(plan),
        ts.Output(stream, "stream", select=["'stream' AS key", "id", "key AS of"]),
    ]


def job(plan: Plan, sinks: list[ts.Output], dead_letters: ts.sinks.Sink | None = None) -> ts.Job:
    length = plan.epochs * PER_EPOCH
    return ts.Job(
        NAME,
        source=ts.sources.Collection(record, length=length, schema="id long, key string", per_epoch=PER_EPOCH),
        sink=sinks,
        dead_letters=dead_letters,
        checkpoint=ts.Checkpoint(Path(plan.folder) / "checkpoint", interval="0s", timeout="2m"),
        restart=ts.FixedDelay(plan.restarts, "1s") if plan.restarts else None,
        guarantee=plan.mode,
    )


def expected(plan: Plan) -> Iterator[tuple[str, object]]:
    """What is in all four of them after a run without faults, as one multiset."""
    rows = [record(number) for number in range(plan.epochs * PER_EPOCH)]
    for row in rows:
        yield "events", (row["id"], row["key"])
        yield "stream", (row["id"], row["key"])
        yield "counts", row["key"]
    latest = {row["key"]: row["id"] for row in rows if int(str(row["id"])) % 2 == 0}
    yield from (("latest", pair) for pair in latest.items())


def delivered(plan: Plan) -> Iterator[tuple[str, object]]:
    """What readers find now."""
    for row in ask(plan.postgresql, f"SELECT id, key FROM {plan.name}_events"):
        yield "events", row
    for row in ask(plan.postgresql, f"SELECT key, id FROM {plan.name}_latest"):
        yield "latest", row
    asked: Any = client(plan.redis)
    for _, fields in asked.xrange(f"{plan.name}:stream"):
        yield "stream", (int(fields[b"id"]), fields[b"of"].decode())
    yield from counted(plan, [f"k{number}" for number in range(KEYS)])


def counted(plan: Plan, keys: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Each key as often as its counter says."""
    asked: Any = client(plan.redis)
    for key in keys:
        yield from [("counts", key)] * int(asked.get(f"{plan.name}:count:{key}") or 0)


def main(plan: Plan, made: ts.Job) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    hold_at_kill_points(Holds(plan.folder, plan.holds))
    spark = ts.session(NAME, master=plan.master, conf=SPARK, fast_start=True)
    made.run(spark, available_now=True)


if __name__ == "__main__":
    given = Plan.from_json(sys.argv[1])
    main(given, job(given, outputs(given)))
