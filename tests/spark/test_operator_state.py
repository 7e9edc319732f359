"""Operator state: one state per slot, which moves with its slot when the state is dealt out anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, Row, SparkSession

import tallystick as ts
from cli_runner import Tally
from tallystick.errors import ConfigError, PrepareError
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark

# workers cannot import a test module, but they need the classes below
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SLOTS = 5


class Numbered(ts.state.Operator):
    """Numbers the rows of each slot without a gap."""

    output = "slot int, n long, id long"
    last = ts.state.Value("long")

    def on_slot(self, slot: int, rows: Iterator[Row], now: ts.state.Now) -> Iterator[tuple[Any, ...]]:
        n = self.last.get() or 0
        for row in sorted(rows, key=lambda row: int(row["id"])):
            n += 1
            yield slot, n, row["id"]
        self.last.set(n)


def numbering(folder: Path, sink: Memory, rows: int, slots: int = SLOTS) -> ts.Job:
    def steps(frame: DataFrame) -> DataFrame:
        return ts.state.operator(frame, slots=slots, state=Numbered())

    return ts.Job(
        "numbers",
        source=ts.sources.Collection([{"id": number} for number in range(rows)], per_epoch=20),
        steps=steps,
        output_mode="update",
        sink=sink,
        checkpoint=ts.Checkpoint(folder, interval="0s"),
    )


def by_slot(sink: Memory) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for row in sink.rows():
        found.setdefault(row["slot"], []).append((row["n"], row["id"]))
    return found


def test_slots_keep_their_state_when_it_is_dealt_out_to_more_and_to_fewer_partitions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line: create, restore --partitions, run; twice."""
    tally, sink = Tally(capsys), Memory(f"slots-{tmp_path.name}")
    sink.clear()
    numbering(tmp_path / "two", sink, 40).run(spark, available_now=True)
    before = by_slot(sink)
    assert set(before) == set(range(SLOTS)), "every slot has rows, or this test shows nothing"
    for source, target, partitions, rows in (("two", "four", 4, 80), ("four", "one", 1, 120)):
        made = tally("savepoint", "create", tmp_path / source, tmp_path / f"kept-{source}", "--json")
        assert made.status == 0, made.err
        options = ("--partitions", str(partitions), "--json")
        restored = tally("savepoint", "restore", tmp_path / f"kept-{source}", tmp_path / target, *options)
        assert restored.status == 0, restored.err
        stores = {path.name for path in (tmp_path / target / "state" / "0").iterdir() if path.name.isdigit()}
        assert {str(number) for number in range(partitions)} <= stores
        numbering(tmp_path / target, sink, rows).run(spark, available_now=True)
        described = max(
            (tmp_path / target / "state" / "0" / "_metadata" / "v2").glob("[0-9]*"), key=lambda p: int(p.name)
        )
        stated = json.loads(described.read_text().split("\n", 1)[1])["stateStoreInfo"]
        assert {store["numPartitions"] for store in stated} == {partitions}
    ids = []
    for slot, rows_of_slot in by_slot(sink).items():
        assert sorted(n for n, _ in rows_of_slot) == list(range(1, len(rows_of_slot) + 1)), f"a gap in slot {slot}"
        ids += [id_ for _, id_ in rows_of_slot]
    assert sorted(ids) == list(range(120))


def test_another_number_of_slots_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = Memory(f"refused-{tmp_path.name}")
    sink.clear()
    numbering(tmp_path / "checkpoint", sink, 20).run(spark, available_now=True)
    with pytest.raises(PrepareError, match=r"begun with 5 slots, now there are 3: .*set slots=5"):
        numbering(tmp_path / "checkpoint", sink, 40, slots=3).run(spark, available_now=True)
    numbering(tmp_path / "checkpoint", sink, 40).run(spark, available_now=True)
    assert sorted(row["id"] for row in sink.rows()) == list(range(40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "needs a number of slots such as 8, found 0"),
        ({"slots": True}, "needs a number of slots such as 8, found True"),
        ({"state": object()}, r"a class of yours below ts\.state\.Operator"),
        ({"by": "nobody"}, "operator state by nobody: the rows have id"),
    ],
)
def test_what_cannot_work_is_refused(spark: SparkSession, settings: dict[str, Any], message: str) -> None:
    rows = ts.sources.Collection([{"id": 1}]).load(spark)
    with pytest.raises(ConfigError, match=message):
        ts.state.operator(rows, **{"slots": 2, "state": Numbered(), **settings})
    with pytest.raises(ConfigError, match="have a column 'slot' already"):
        ts.state.operator(rows.withColumnRenamed("id", "slot"), 2, Numbered())
