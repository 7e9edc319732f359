"""How many slices an epoch has: no more than can be written at once, fewer if it is small; or as the query says."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
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
def slots(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Let the next query have so many task slots: more than this machine has processors."""
    monkeypatch.setattr(slicing, "processors", lambda: 2)

    def have(count: int | None) -> None:
        monkeypatch.setattr(slicing, "slots_of", lambda _: count)

    return have


@dataclass
class Prepared:
    """How many slices and tasks each epoch had that was computed, also those that were not decided anew."""

    slices: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    counts = Prepared()
    original = prepare_slices

    def counted(*arguments: Any) -> Any:
        votes, seen = original(*arguments)
        counts.slices.append(len({vote.slice for vote in votes}))
        counts.tasks.append(len(seen))
        return votes, seen

    monkeypatch.setattr(coordinator, "prepare_slices", counted)
    return counts


def run(spark: SparkSession, folder: Path, steps: Callable[[DataFrame], DataFrame] | None = None) -> None:
    """Nine rows to an epoch, one in each partition, as long as there are rows."""
    ts.Job(
        "slices",
        source=ts.sources.Collection(ROWS, partitions=PARTITIONS, per_epoch=PARTITIONS),
        sink=ts.sinks.Files(folder / "out", format="json"),
        steps=steps,
        checkpoint=folder / "checkpoint",
    ).run(spark, available_now=True)


def ids(folder: Path) -> list[int]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def test_small_epochs_have_fewer(
    spark: SparkSession, tmp_path: Path, slots: Callable[[int | None], None], prepared: Prepared
) -> None:
    slots(5)
    run(spark, tmp_path)
    assert prepared.slices == prepared.tasks == [5] * 4 + [2] * 6
    assert ids(tmp_path) == list(range(90))
    assert spark.conf.get(SLICES, None) is None, "the number is the query's, not that of its session"


def by_id(rows: DataFrame) -> DataFrame:
    return rows.repartition(7, "id")


def votes_by_slice(folder: Path) -> dict[tuple[int, int], object]:
    """Of every epoch: what each slice was decided to be."""
    records = Journal(PosixStore(folder / "checkpoint" / "tallystick")).records()
    return {
        (record.attempt.epoch, vote.slice): vote.fingerprint
        for record in records
        for vote in record.votes
        if vote.fingerprint.rows
    }


def test_slices_that_a_query_names_share_tasks(
    spark: SparkSession, tmp_path: Path, slots: Callable[[int | None], None], prepared: Prepared, monkeypatch: Any
) -> None:
    """They are the same slices as without that."""
    slots(4)
    run(spark, tmp_path / "shared", by_id)
    assert prepared.tasks == [4] * 4 + [2] * 6
    assert max(prepared.slices) > 4
    prepared.tasks.clear()
    monkeypatch.setattr(slicing, "SMALL_ROWS", 0)
    run(spark, tmp_path / "large", by_id)
    assert prepared.tasks == [4] + [7] * 9, "a large epoch has a task for each slice"
    slots(None)
    run(spark, tmp_path / "alone", by_id)
    assert votes_by_slice(tmp_path / "shared") == votes_by_slice(tmp_path / "large")
    assert votes_by_slice(tmp_path / "shared") == votes_by_slice(tmp_path / "alone")
    for folder in ("shared", "large", "alone"):
        assert ids(tmp_path / folder) == list(range(90))


@pytest.mark.parametrize("then", [3, 9])
def test_a_replay_has_as_many_as_were_decided_with_other_slots_too(
    spark: SparkSession, tmp_path: Path, slots: Callable[[int | None], None], prepared: Prepared, then: int
) -> None:
    slots(5)
    run(spark, tmp_path)
    (tmp_path / "checkpoint" / "commits" / "9").unlink()
    prepared.slices.clear()
    slots(then)
    run(spark, tmp_path)
    assert prepared.slices == [2]
    assert ids(tmp_path) == list(range(90))
