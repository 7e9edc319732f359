"""The commit of files: renamed once, however often and by whomever it is asked for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from file_slices import made, prepare, published, rows

from tallystick.errors import SinkError
from tallystick.records import Outcome
from tallystick.sinks import TransactionState
from tallystick.testing.sinks import JOB, context


def test_a_file_taken_away_by_a_consumer_is_not_published_again(tmp_path: Path) -> None:
    sink = made(tmp_path / "out")
    committable = prepare(sink, rows(0, 3))
    assert sink.commit(committable) is Outcome.COMMITTED
    (file,) = (tmp_path / "out").glob("*.parquet")
    file.rename(tmp_path / "taken")
    assert sink.recover_and_commit(committable) is Outcome.ALREADY_COMMITTED
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_commit_that_died_half_way_is_finished(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 6, kinds=2))
    staged, final = committable["files"][0]
    (tmp_path / final).parent.mkdir()
    (sink.staging.locate(committable["dir"]) / staged).rename(tmp_path / final)
    assert [one.state for one in sink.open_transactions(JOB)] == [TransactionState.PRE_COMMITTED]
    assert sink.recover_and_commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(6))
    assert list(sink.open_transactions(JOB)) == []


def test_without_its_folder_a_transaction_is_judged_by_what_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 6, kinds=2))
    assert sink.commit(committable) is Outcome.COMMITTED
    sink.settled(JOB, 0)
    assert sink.commit(committable) is Outcome.ALREADY_COMMITTED
    (tmp_path / committable["files"][0][1]).unlink()
    assert sink.commit(committable) is Outcome.REFUSED
    assert "1 of 2 files were published" in caplog.text
    (tmp_path / committable["files"][1][1]).unlink()
    assert sink.commit(committable) is Outcome.EXPIRED


def test_a_foreign_file_is_never_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = made(tmp_path)
    committable = prepare(sink, rows(0, 3))
    place = tmp_path / committable["files"][0][1]
    place.write_text("somebody's")
    assert sink.commit(committable) is Outcome.REFUSED
    assert place.read_text() == "somebody's"
    assert "another file already has the name" in caplog.text
    place.unlink()
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_file_where_a_partition_folder_must_be_needs_a_person(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 2, kinds=1))
    (tmp_path / "kind=k0").write_text("in the way")
    assert sink.commit(committable) is Outcome.REFUSED
    (tmp_path / "kind=k0").unlink()
    assert sink.commit(committable) is Outcome.COMMITTED


def test_many_commits_at_once_publish_once(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 100, kinds=50))
    outcomes: list[Outcome] = []
    start = threading.Barrier(4)

    def commit() -> None:
        start.wait(10)
        outcomes.append(sink.commit(committable))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(outcomes) == 4
    assert all(outcome.confirmed for outcome in outcomes)
    assert published(tmp_path) == list(range(100))


def test_a_task_of_a_fenced_driver_finds_nothing_to_write_to(tmp_path: Path) -> None:
    sink = made(tmp_path)
    late = sink.begin_transaction(context(generation=1))
    sink.write(late, rows(0, 3))
    for one in sink.open_transactions(JOB):
        sink.abort(one.committable)
    with pytest.raises(SinkError, match="cannot stage files"):
        sink.pre_commit(late)
    sink.rollback(late)
    assert list(sink.open_transactions(JOB)) == []


def test_open_transactions_tell_what_people_ask(tmp_path: Path) -> None:
    sink = made(tmp_path)
    prepared = prepare(sink, rows(0, 3), where=context(epoch=5, slice_=3))
    sink.begin_transaction(context(epoch=6, slice_=4))
    first, second = sink.open_transactions(JOB)
    assert (first.state, first.slice, first.committable) == (TransactionState.PRE_COMMITTED, 3, prepared)
    assert (second.state, second.slice) == (TransactionState.BEGUN, 4)
    assert first.name == context(epoch=5, slice_=3).name
    assert first.age_s is not None
    assert 0 <= first.age_s < 60
    assert list(sink.open_transactions("no such job")) == []


def test_a_torn_manifest_is_no_pre_commit(tmp_path: Path) -> None:
    sink = made(tmp_path)
    committable = prepare(sink, rows(0, 3))
    (sink.staging.locate(committable["dir"]) / "manifest").write_text('{"dir": "con')
    (found,) = sink.open_transactions(JOB)
    assert found.state is TransactionState.BEGUN
    sink.abort(found.committable)
    assert list(sink.open_transactions(JOB)) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a/../c", "/etc/x", "a//b", "a/b/c/d"])
def test_nothing_outside_the_staging_folder_can_be_named(name: str, tmp_path: Path) -> None:
    sink = made(tmp_path)
    with pytest.raises(SinkError, match="not a transaction"):
        sink.abort({"dir": name, "files": []})


def test_a_job_id_of_any_letters_stays_inside(tmp_path: Path) -> None:
    sink = made(tmp_path / "out")
    assert sink.commit(prepare(sink, rows(0, 1), where=context(job="../../a b"))) is Outcome.COMMITTED
    sink.settled("../../a b", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
