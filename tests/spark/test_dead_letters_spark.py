"""Rows that a target refuses, on a real Spark: each is in exactly one place, whatever expires and is repeated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from cli_runner import Tally
from tallystick.errors import PrepareError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import tally

pytestmark = pytest.mark.spark

ROWS = 40
GOOD = [n for n in range(ROWS) if n % 7 != 3]
BAD = [n for n in range(ROWS) if n % 7 == 3]


def with_nulls(rows: DataFrame) -> DataFrame:
    """A name for every row but each seventh, which the sink requires."""
    return rows.withColumn("name", F.when(F.col("id") % 7 != 3, F.lit("somebody")))


def job(folder: Path, steps: Any = with_nulls, **settings: Any) -> ts.Job:
    settings.setdefault("dead_letters", ts.sinks.Files(folder / "bad", format="json"))
    return ts.Job(
        "letters",
        source=ts.sources.Collection([{"id": n} for n in range(ROWS)], per_epoch=10, partitions=2),
        steps=steps,
        sink=[ts.Output(ts.sinks.Files(folder / "out", required=["name"]), "names"), ts.sinks.Files(folder / "all")],
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
        **settings,
    )


def run(declared: ts.Job, spark: SparkSession) -> list[str]:
    endings: list[str] = []
    declared.run(spark, available_now=True, on_finished=lambda _, finished: endings.append(finished.how))
    return endings


def ids(folder: Path) -> list[int]:
    return [value for path in folder.glob("*.parquet") for value in pq.ParquetFile(path).read()["id"].to_pylist()]


def letters(folder: Path) -> list[Any]:
    found = [json.loads(line) for path in (folder / "bad").glob("*.json") for line in path.read_text().splitlines()]
    return sorted(found, key=lambda letter: int(json.loads(letter["row"])["id"]))


def dead(folder: Path) -> list[int]:
    return [json.loads(letter["row"])["id"] for letter in letters(folder)]


def expire(folder: Path, place: str, epoch: int, number: int) -> None:
    """As if the staged files had been swept away before they were published."""
    for path in (folder / place).glob(f"part-{epoch:012d}-{number:06d}-*"):
        path.unlink()
    for path in (folder / place / ".tallystick").glob(f"*/{epoch:012d}.*/{epoch:012d}.*-{number:06d}-*"):
        shutil.rmtree(path)


def repeat_last_epoch(folder: Path) -> None:
    for path in (folder / "checkpoint" / "commits").glob(f"*{ROWS // 10 - 1}*"):
        path.unlink()


def notes(folder: Path) -> list[str]:
    return [note.kind for note in Journal(PosixStore(folder / "checkpoint" / "tallystick")).notes()]


def test_refused_rows_are_in_the_dead_letters_of_the_same_epoch_and_are_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job(tmp_path), spark) == ["written"] * 4
    assert tally(GOOD, ids(tmp_path / "out")).exact
    assert tally(range(ROWS), ids(tmp_path / "all")).exact, "the other sink took them"
    assert dead(tmp_path) == BAD
    first = letters(tmp_path)[0]
    assert {name: first[name] for name in ("sink", "epoch", "reason", "row")} == {
        "sink": "names",
        "epoch": 0,
        "reason": f"null in 'name', which {tmp_path}/out requires",
        "row": '{"id": 3, "name": null}',
    }
    assert len({letter["id"] for letter in letters(tmp_path)}) == len(BAD)
    told = Tally(capsys)("audit", tmp_path / "checkpoint", "--json").json["totals"]
    by_sink = told["by_sink"]
    assert (told["records"], told["refused"]) == (2 * ROWS, len(BAD))
    assert {name: (one["records"], one["refused"]) for name, one in by_sink.items()} == {
        "names": (ROWS, len(BAD)),
        "files": (ROWS, 0),
        "dead-letters": (len(BAD), 0),
    }
    shown = Tally(capsys)("checkpoints", "show", tmp_path / "checkpoint", "3", "--no-state", "--json").json
    last = [n for n in BAD if n >= 30]
    assert (shown["records"], shown["refused"]) == (20, len(last))
    of_names = [entry for entry in shown["transactions"] if entry["sink"] == "names"]
    assert sum(entry["refused"] for entry in of_names) == len(last)


def test_each_row_stays_in_its_one_place_whatever_expires(spark: SparkSession, tmp_path: Path) -> None:
    """One story, because starting queries takes longer than telling it. What was refused must not be asked again."""
    run(job(tmp_path), spark)
    before = letters(tmp_path)
    for lost in [(), ("out",), ("bad",), ("out", "bad")]:
        repeat_last_epoch(tmp_path)
        for place in lost:
            expire(tmp_path, place, 3, 0)
        assert run(job(tmp_path), spark) == ["rewritten" if lost else "verified"], lost
        assert tally(GOOD, ids(tmp_path / "out")).exact, lost
        assert letters(tmp_path) == before, "the same letters, word for word"
    assert notes(tmp_path) == []


def test_without_dead_letters_the_epoch_fails_and_with_them_it_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match=r"epoch 0 could not be prepared: a row has null in 'name'"):
        run(job(tmp_path, dead_letters=None), spark)
    assert run(job(tmp_path), spark) == ["written"] * 4
    assert (sorted(ids(tmp_path / "out")), dead(tmp_path)) == (GOOD, BAD)
