"""A checkpoint that is not whole is noticed from its files alone; and Spark's own errors about it are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import commit, finish, new_checkpoint, vote
from tallystick.errors import CheckpointError, ForeignCheckpointError
from tallystick.journal import JobIdentity, Journal, roll_up
from tallystick.journal.posix import PosixStore
from tallystick.spark.whole import check_whole, mark, trouble


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return new_checkpoint(tmp_path)


def check(folder: Path) -> None:
    check_whole(Journal(PosixStore(folder / "tallystick")), PosixStore(folder))


def owner(journal: Journal) -> JobIdentity:
    found = journal.identity()
    assert found is not None
    return found


def test_a_whole_one_and_a_new_one(journal: Journal, tmp_path: Path) -> None:
    check(tmp_path / "new")
    journal.put(commit(0, 1, vote(1)))
    finish(tmp_path, 0)
    mark(owner(journal), PosixStore(tmp_path))
    mark(owner(journal), PosixStore(tmp_path))
    check(tmp_path)


def test_an_epoch_that_was_begun_and_not_decided_is_no_damage(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}")
    check(tmp_path)


def test_logs_that_end_before_the_journal(journal: Journal, tmp_path: Path) -> None:
    for epoch in range(3):
        journal.put(commit(epoch, 1, vote(1)))
    finish(tmp_path, 0, 1)
    with pytest.raises(CheckpointError, match=r"its journal knows of epoch 2, but .*offsets ends at epoch 1"):
        check(tmp_path)


def test_logs_that_end_before_what_was_rolled_up(journal: Journal, tmp_path: Path) -> None:
    for epoch in range(10):
        journal.put(commit(epoch, 1, vote(1)))
    assert roll_up(journal, settled=9, epochs=5)
    for record in journal.records():
        journal.forget(record.attempt)
    with pytest.raises(CheckpointError, match=r"its journal knows of epoch 4, but .*offsets is empty"):
        check(tmp_path)


def test_a_journal_that_is_gone_or_another_ones(journal: Journal, tmp_path: Path) -> None:
    mark(JobIdentity("pv", "another-id"), PosixStore(tmp_path))
    with pytest.raises(ForeignCheckpointError, match="is the journal of another checkpoint"):
        check(tmp_path)
    (tmp_path / "tallystick" / "job.json").unlink()
    with pytest.raises(CheckpointError, match=r"belongs to the job 'pv', but its journal, the folder .* is gone"):
        check(tmp_path)


@pytest.mark.parametrize(("entries", "whole"), [((), False), (("0", "1"), False), (("0", "1", "2"), True)])
def test_the_log_of_a_file_source(journal: Journal, tmp_path: Path, entries: tuple[str, ...], whole: bool) -> None:
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"offset":1}\n{"logOffset":2}')
    for entry in entries:
        (tmp_path / "sources" / "1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sources" / "1" / entry).touch()
    if whole:
        check(tmp_path)
        return
    with pytest.raises(CheckpointError, match="has read up to entry 2 of its file source"):
        check(tmp_path)


def test_a_compacted_log_of_a_file_source(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":9}')
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "9.compact").touch()
    check(tmp_path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart: the directory is empty",
            "is not whole",
        ),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.", "is not whole"),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match.", "has another schema"),
        ("java.lang.IllegalStateException: Incomplete log file", "is torn"),
    ],
)
def test_what_spark_says_about_a_checkpoint(said: str, expected: str) -> None:
    assert expected in (trouble(f"Query failed with {said}\n\tat org.apache.spark.Some.where(Some.scala:1)") or "")


@pytest.mark.parametrize("said", ["", "java.io.IOException: connection reset", "ValueError: the file does not exist"])
def test_what_is_about_something_else(said: str) -> None:
    assert trouble(said) is None
