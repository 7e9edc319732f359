"""How many slices an epoch has: no more than can be written at once, fewer if it is small; or as the query says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.spark import coordinator, slicing
from tallystick.spark.prepare import prepare_slices
from tallystick.spark.slicing import SLICES

pytestmark = pytest.mark.spark

PARTITIONS = 9
ROWS = [{"id": number} for number in range(90)]


def slices(spark: SparkSession, folder: Path, steps: Callable[[DataFrame], DataFrame], mode: str = "append") -> int:
    """Of the only epoch of a job with these steps, whose source has `PARTITIONS`."""
    ts.Job(
        "slices",
        source=ts.sources.Collection(ROWS, partitions=PARTITIONS),
        sink=ts.sinks.Files(folder / "out", format="json"),
        steps=steps,
        output_mode=mode,
        checkpoint=folder / "checkpoint",
    ).run(spark, available_now=True)
    found = Journal(PosixStore(folder / "checkpoint" / "tallystick")).records(0)
    written = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert len(written) == sum(vote.fingerprint.rows for record in found for vote in record.votes) > 0
    return len({vote.slice for record in found for vote in record.votes})


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(lambda rows: rows, id="as they are"),
        pytest.param(lambda rows: rows.where("id > 3").select("id", F.lit(1).alias("one")), id="row by row"),
        pytest.param(lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema), id="in Python"),
    ],
)
def test_tasks_take_over_several_partitions_of_the_source(
    spark: SparkSession, tmp_path: Path, steps: Callable[[DataFrame], DataFrame]
) -> None:
    slots = spark.sparkContext.defaultParallelism
    assert slots < PARTITIONS, "a test that shows nothing otherwise"
    assert slices(spark, tmp_path, steps) == slots


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(lambda rows: rows.repartition(7), 7, id="repartition"),
        pytest.param(lambda rows: rows.coalesce(6), 6, id="coalesce"),
        pytest.param(lambda rows: rows.repartition(7, "id"), 7, id="by column"),
    ],
)
def test_a_number_that_the_query_names_stays(
    spark: SparkSession, tmp_path: Path, steps: Callable[[DataFrame], DataFrame], expected: int
) -> None:
    assert slices(spark, tmp_path, steps) == expected


def test_state_is_left_in_its_own_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Also where there are more of them than task slots."""
    before = spark.conf.get("spark.sql.shuffle.partitions") or "200"
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        assert slices(spark, tmp_path, lambda rows: rows.groupBy("id").count(), "update") == 5
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


# -- as many as the size of epochs asks for ----------------------------------------------------------------------------


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the next query have so many task slots: more than this machine has processors."""
    monkeypatch.setattr(slicing, "processors", lambda: 2)

    def have(count: int) -> None:
        monkeypatch.setattr(slicing, "slots_of", lambda _: count)

    return have


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slices each epoch had that was computed, also those that were not decided anew."""
    counts: list[int] = []
    original = prepare_slices

    def counted(*arguments: Any) -> Any:
        votes, seen = original(*arguments)
        counts.append(len({vote.slice for vote in votes}))
        return votes, seen

    monkeypatch.setattr(coordinator, "prepare_slices", counted)
    return counts


def run(spark: SparkSession, folder: Path) -> None:
    """Nine rows to an epoch, one in each partition, as long as there are rows."""
    ts.Job(
        "slices",
        source=ts.sources.Collection(ROWS, partitions=PARTITIONS, per_epoch=PARTITIONS),
        sink=ts.sinks.Files(folder / "out", format="json"),
        checkpoint=folder / "checkpoint",
    ).run(spark, available_now=True)


def ids(folder: Path) -> list[int]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def test_small_epochs_have_fewer(
    spark: SparkSession, tmp_path: Path, slots: Callable[[int], None], prepared: list[int]
) -> None:
    slots(5)
    run(spark, tmp_path)
    assert prepared == [5] * 4 + [2] * 6
    assert ids(tmp_path) == list(range(90))
    assert spark.conf.get(SLICES, None) is None, "the number is the query's, not that of its session"


@pytest.mark.parametrize("then", [3, 9])
def test_a_replay_has_as_many_as_were_decided_with_other_slots_too(
    spark: SparkSession, tmp_path: Path, slots: Callable[[int], None], prepared: list[int], then: int
) -> None:
    slots(5)
    run(spark, tmp_path)
    (tmp_path / "checkpoint" / "commits" / "9").unlink()
    prepared.clear()
    slots(then)
    run(spark, tmp_path)
    assert prepared == [2]
    assert ids(tmp_path) == list(range(90))
