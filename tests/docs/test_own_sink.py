"""The sink of `docs/how-to/write-your-own-sink.md`: its code is taken from the page, checked and used."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import DOCS, run
from pyspark.sql import SparkSession

from tallystick.prover import tally

PAGE = DOCS / "how-to" / "write-your-own-sink.md"
DECLARED = run(PAGE, slice(2))

TestSqlite = DECLARED.TestSqlite
"""The contract suite, as the page sets it up. Pytest finds it under this name."""


def orders(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        return db.execute("select id, item from orders").fetchall()


def tables(folder: Path) -> set[str]:
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        return {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}


def repeat_last_epoch(folder: Path) -> int:
    """As the page says: delete the last file in commits, with its checksum if there is one."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


@pytest.fixture
def page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The whole page, run in an empty folder: its job has come to its end."""
    monkeypatch.chdir(tmp_path)
    return run(PAGE, spark=spark)


@pytest.mark.spark
def test_an_epoch_that_spark_repeats_changes_nothing(page: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    expected = [(number, f"item {number % 7}") for number in range(100)]
    assert tally(expected, orders(tmp_path)).exact
    assert repeat_last_epoch(tmp_path) == 3
    endings: list[tuple[int, str]] = []
    page.job.run(spark, available_now=True, on_finished=lambda at, how: endings.append((at.epoch, how.how)))
    assert endings == [(3, "verified")]
    assert tally(expected, orders(tmp_path)).exact
    assert tables(tmp_path) == {"orders", "orders_transactions"}, "nothing stays staged"


@pytest.mark.spark
def test_rows_that_were_swept_away_are_written_again(page: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    """The decision stands in the journal, the database knows nothing of it: expired, and written once more."""
    last = repeat_last_epoch(tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("delete from orders where id >= 75")
        db.execute("delete from orders_transactions where epoch = ?", (last,))
    endings: list[str] = []
    page.job.run(spark, available_now=True, on_finished=lambda _, how: endings.append(how.how))
    assert endings == ["rewritten"]
    assert tally(range(100), [number for number, _ in orders(tmp_path)]).exact
