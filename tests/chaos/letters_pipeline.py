"""The job that kills hit: rows into a table of PostgreSQL and counters of Redis, refused ones into the dead letters.

Run as ``python letters_pipeline.py PLAN``, with a plan of `databases_pipeline.py` as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from databases_pipeline import KEYS, PER_EPOCH, Plan, counted, counts, job, main, record

import tallystick as ts
from postgresql_tables import ask
from redis_keys import client

REFUSED_KEY = "k3"


def refused_id(number: int) -> bool:
    return number % 11 == 4


def prepare(plan: Plan) -> None:
    """A table that refuses one row in eleven, and a key that counters cannot be in."""
    ask(plan.postgresql, f"CREATE TABLE {plan.name}_events (id bigint CHECK (id % 11 <> 4), key text)")
    client(plan.redis).rpush(f"{plan.name}:count:{REFUSED_KEY}", "entry")


def outputs(plan: Plan) -> list[ts.Output]:
    return [ts.Output(ts.sinks.PostgreSQL(plan.postgresql, f"{plan.name}_events"), "events"), counts(plan)]


def expected(plan: Plan) -> Iterator[tuple[str, object]]:
    for number in range(plan.epochs * PER_EPOCH):
        key = record(number)["key"]
        yield ("letter of events" if refused_id(number) else "events"), number
        yield ("letter of counts" if key == REFUSED_KEY else "counts"), key


def delivered(plan: Plan) -> Iterator[tuple[str, object]]:
    for (number,) in ask(plan.postgresql, f"SELECT id FROM {plan.name}_events"):
        yield "events", number
    for sink, row in ask(plan.postgresql, f"SELECT sink, row::json FROM {plan.name}_letters"):
        yield f"letter of {sink}", row["id"] if sink == "events" else row["key"]
    yield from counted(plan, {f"k{number}" for number in range(KEYS)} - {REFUSED_KEY})


if __name__ == "__main__":
    given = Plan.from_json(sys.argv[1])
    main(given, job(given, outputs(given), ts.sinks.PostgreSQL(given.postgresql, f"{given.name}_letters")))
