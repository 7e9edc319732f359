"""``ts.state``: values, lists, maps, timers and times to live, on a real Spark; and what cannot work is refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, Row, SparkSession

import tallystick as ts
from cli_runner import Tally
from tallystick.errors import ConfigError
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark

# workers cannot import a test module, but they need the classes below
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


class Basket(ts.state.Keyed):
    """One variable of each kind, read before it is written."""

    output = "user string, visits long, last string, seen long, by_item long"
    visits = ts.state.Value("long")
    last = ts.state.Value("item string, place long")
    items = ts.state.List("string")
    by_item = ts.state.Map("string", "long")

    def on_rows(self, key: tuple[Any, ...], rows: Iterator[Row], now: ts.state.Now) -> Iterator[tuple[Any, ...]]:
        for row in sorted(rows, key=lambda row: int(row["id"])):
            self.visits.set((self.visits.get() or 0) + 1)
            self.last.set((row["item"], row["id"]))
            self.items.append(row["item"])
            self.by_item.set(row["item"], (self.by_item.get(row["item"]) or 0) + 1)
        item, place = self.last.get()
        assert place >= 0
        yield key[0], self.visits.get(), item, len(self.items.get()), sum(count for _, count in self.by_item.items())


def job(folder: Path, state: ts.state.Keyed, sink: Memory, rows: int = 30, **settings: Any) -> ts.Job:
    given = [{"id": number, "user": f"u{number % 2}", "item": f"i{number % 3}"} for number in range(rows)]

    def steps(frame: DataFrame) -> DataFrame:
        return ts.state.keyed(frame, by="user", state=state, **settings)

    return ts.Job(
        "baskets",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=steps,
        output_mode="update",
        sink=sink,
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


def memory(name: str) -> Memory:
    sink = Memory(name)
    sink.clear()
    return sink


def test_each_kind_of_state_lives_from_epoch_to_epoch_and_start_to_start(
    spark: SparkSession, tally: Tally, tmp_path: Path
) -> None:
    sink = memory(f"baskets-{tmp_path.name}")
    job(tmp_path, Basket(), sink, rows=20).run(spark, available_now=True)
    job(tmp_path, Basket(), sink, rows=30).run(spark, available_now=True)
    found = sorted((row["user"], row["visits"], row["last"], row["seen"], row["by_item"]) for row in sink.rows())
    assert found == [
        ("u0", 5, "i2", 5, 5),
        ("u0", 10, "i0", 10, 10),
        ("u0", 15, "i1", 15, 15),
        ("u1", 5, "i0", 5, 5),
        ("u1", 10, "i1", 10, 10),
        ("u1", 15, "i2", 15, 15),
    ]
    shown = tally("checkpoints", "show", tmp_path / "checkpoint", "--json")
    assert shown.status == 0, shown.err
    [operator] = shown.json["operators"]
    states = {state["name"]: state for state in operator["state"]}
    assert set(states) == {"visits", "last", "items", "by_item"}
    assert [(entry["key"], entry["value"]) for entry in states["visits"]["sample"]] == [
        ({"user": "u0"}, {"value": 15}),
        ({"user": "u1"}, {"value": 15}),
    ]


class Forgets(ts.state.Keyed):
    """Sets a timer at the first row of a key; when it comes, the key is over."""

    output = "user string, what string"
    begun = ts.state.Value("boolean", ttl="1h")

    def on_rows(self, key: tuple[Any, ...], rows: Iterator[Row], now: ts.state.Now) -> Iterator[tuple[Any, ...]]:
        list(rows)
        if not self.begun.exists():
            self.begun.set(True)
            self.timers.set(now.processing_ms + 1)
        assert len(self.timers.all()) <= 1
        yield key[0], "seen"

    def on_timer(self, key: tuple[Any, ...], at_ms: int, now: ts.state.Now) -> Iterator[tuple[Any, ...]]:
        assert at_ms <= now.processing_ms
        self.begun.clear()
        yield key[0], "over"


def test_timers_and_a_time_to_live(spark: SparkSession, tmp_path: Path) -> None:
    """With timers by processing time Spark always has one more epoch to run: such a query never comes to its end."""
    sink = memory(f"forgets-{tmp_path.name}")
    query = job(tmp_path, Forgets(), sink, time="processing").start(spark)
    deadline = time.monotonic() + 120

    def seen() -> list[str]:
        return [row["what"] for row in sink.rows() if row["user"] == "u0"]

    try:
        while not (seen().count("seen") == 3 and seen()[-1] == "over"):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, seen()
            time.sleep(0.2)
    finally:
        query.stop()


def batch(spark: SparkSession) -> DataFrame:
    return ts.sources.Collection([{"user": "u"}]).load(spark)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"state": Basket}, "needs an object of a class of yours"),
        ({"state": Basket(), "time": "lunch"}, "time 'lunch' is unknown: needed one of none, processing, event"),
        ({"state": Basket(), "output_mode": "complete"}, "needed append or update"),
        ({"state": Forgets()}, "begun has a time to live, which needs time='processing'"),
        ({"state": Basket(), "by": "nobody"}, "keyed state by nobody cannot work"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(
    spark: SparkSession, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ts.state.keyed(batch(spark), **{"by": "user", **settings})


@pytest.mark.parametrize(("schema", "ttl"), [("", None), (5, None), ("long", "0s"), ("long", "soon")])
def test_a_variable_is_checked(schema: Any, ttl: Any) -> None:
    with pytest.raises(ConfigError):
        ts.state.Value(schema, ttl)
