"""Idempotent and plain sinks behind staging: how their failures are answered. And standard output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallystick.errors import CommitRefusedError, ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks import Memory, PlainSink, Sink, SliceContext, Stdout
from tallystick.sinks.staged import Answer, StagedSink, lower
from tallystick.testing.sinks import JOB, context


class Recorder(PlainSink):
    """Remembers what is applied, and fails as told, once each."""

    facts = SinkFacts("recorder", Kind.PLAIN, Mode.AT_LEAST_ONCE, "a list")

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.applied: list[tuple[SliceContext, list[Json]]] = []

    @property
    def target(self) -> str:
        return "recorder"

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.applied.append((context, [row for batch in batches for row in batch.to_pylist()]))


def prepare(sink: StagedSink, *batches: pa.RecordBatch) -> Json:
    transaction = sink.begin_transaction(context(epoch=2, slice_=3))
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def staged(sink: PlainSink, tmp_path: Path) -> StagedSink:
    made = lower(sink, tmp_path / "staging")
    assert isinstance(made, StagedSink)
    return made


ROWS = pa.RecordBatch.from_pydict({"id": [1, 2]})


def test_transactional_sinks_are_left_alone(tmp_path: Path) -> None:
    sink = Memory("t")
    assert lower(sink, tmp_path / "staging") is sink
    assert not (tmp_path / "staging").exists()


def test_a_sink_of_no_kind_is_refused(tmp_path: Path) -> None:
    class Vague(Sink):
        target = "nowhere"

    with pytest.raises(SinkError, match="Vague is none of the three kinds"):
        lower(Vague(), tmp_path)


def test_what_it_promises_is_what_the_sink_inside_promises(tmp_path: Path) -> None:
    sink = staged(Stdout(), tmp_path)
    assert (sink.facts, sink.target) == (Stdout.facts, "stdout")


def test_rows_and_slice_arrive_as_they_were(tmp_path: Path) -> None:
    recorder = Recorder()
    sink = staged(recorder, tmp_path)
    assert sink.commit(prepare(sink, ROWS, ROWS.slice(1))) is Outcome.COMMITTED
    assert recorder.applied == [(context(epoch=2, slice_=3), [{"id": 1}, {"id": 2}, {"id": 2}])]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (ConnectionResetError("gone"), Outcome.RETRY_LATER),
        (TimeoutError("slow"), Outcome.RETRY_LATER),
        (RowRefusedError("no such column"), Outcome.REFUSED),
        (SinkError("no such table"), Outcome.REFUSED),
    ],
)
def test_failures_are_answered_and_the_rows_wait(
    failure: Exception, outcome: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(failure)
    sink = staged(recorder, tmp_path)
    committable = prepare(sink, ROWS)
    assert sink.commit(committable) is outcome
    assert str(failure) in caplog.text
    assert sink.commit(committable) is Outcome.COMMITTED
    assert sink.commit(committable) is Outcome.ALREADY_COMMITTED
    assert len(recorder.applied) == 1


class Picky(Recorder):
    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> None:
        if 2 in rows.column("id").to_pylist():
            raise RowRefusedError(f"slice {context.slice} has a 2")


def test_rows_are_screened_before_they_are_staged(tmp_path: Path) -> None:
    sink = staged(Picky(), tmp_path)
    transaction = sink.begin_transaction(context(slice_=3))
    sink.write(transaction, ROWS.slice(0, 1))
    with pytest.raises(RowRefusedError, match="slice 3 has a 2"):
        sink.write(transaction, ROWS)
    sink.rollback(transaction)
    assert list(sink.open_transactions(JOB)) == []


def test_a_refusal_is_told_in_the_words_of_the_server_and_the_others_are_applied(tmp_path: Path) -> None:
    recorder = Recorder(RowRefusedError("no such column"))
    sink = staged(recorder, tmp_path)
    committables = [prepare(sink, ROWS)]
    other = sink.begin_transaction(context(epoch=2, slice_=4))
    sink.write(other, ROWS)
    committables.append(sink.pre_commit(other))
    with pytest.raises(CommitRefusedError, match=r"recorder refuses rows .*: no such column\. nothing was dropped"):
        sink.commit_all(committables, recovering=False)
    assert [slice_.slice for slice_, _ in recorder.applied] == [4]
    assert sink.commit_all(committables, recovering=True) == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]


def test_executors_are_asked_if_there_is_a_way_to_them(tmp_path: Path) -> None:
    """The way is the driver's: it does not travel."""
    sink = staged(Recorder(), tmp_path)
    asked: list[Json] = []

    def executors(staged: StagedSink, committables: Sequence[Json]) -> list[Answer]:
        asked.extend(committables)
        return [staged.apply_one(committable) for committable in committables]

    sink.executors = executors
    committable = prepare(sink, ROWS)
    assert sink.commit_all([committable], recovering=False) == [Outcome.COMMITTED]
    assert asked == [committable]
    assert sink.__getstate__()["executors"] is None


def test_the_stamp_travels_with_the_decision(tmp_path: Path) -> None:
    recorder = Recorder()
    sink = staged(recorder, tmp_path)
    transaction = sink.begin_transaction(replace(context(), stamp_us=7))
    sink.write(transaction, ROWS)
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    assert recorder.applied[0][0].stamp_us == 7


def test_a_defect_of_the_sink_escapes_and_loses_nothing(tmp_path: Path) -> None:
    sink = staged(Recorder(ZeroDivisionError("a defect")), tmp_path)
    committable = prepare(sink, ROWS)
    with pytest.raises(ZeroDivisionError):
        sink.commit(committable)
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_slice_without_batches_is_applied_as_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    sink = staged(recorder, tmp_path)
    assert sink.commit(prepare(sink)) is Outcome.COMMITTED
    assert [rows for _, rows in recorder.applied] == [[]]


def test_a_missing_staging_folder_is_not_taken_for_expiry(tmp_path: Path) -> None:
    sink = staged(Recorder(), tmp_path)
    committable = prepare(sink, ROWS)
    (tmp_path / "staging").rename(tmp_path / "away")
    assert sink.commit(committable) is Outcome.RETRY_LATER
    with pytest.raises(SinkError, match="is not there for this executor"):
        sink.begin_transaction(context())
    (tmp_path / "away").rename(tmp_path / "staging")
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_staging_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "staging").touch()
    with pytest.raises(SinkError, match=r"cannot stage rows for recorder in .*staging/x: .*Not a directory"):
        lower(Recorder(), tmp_path / "staging" / "x")


def test_stdout_prints_up_to_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [pa.RecordBatch.from_pydict({"value": [f"{n}{m}" for m in range(3)]}) for n in range(3)]
    Stdout(limit=4).apply(context(), lines)
    assert capsys.readouterr().out == "00\n01\n02\n10\n… and 5 more rows\n"
    Stdout("text").apply(context(), [pa.RecordBatch.from_pydict({"value": ["a", None]})])
    assert capsys.readouterr().out == "a\n\n"


def test_stdout_refuses_what_it_cannot_print() -> None:
    with pytest.raises(ConfigError, match="unknown format 'xml'"):
        Stdout("xml")
    with pytest.raises(ConfigError, match=r"limit needs a number of rows above 0, .* found 0"):
        Stdout(limit=0)
    with pytest.raises(ConfigError, match="takes one string column, found struct<a:bigint>"):
        Stdout("text").columns(t.StructType([t.StructField("a", t.LongType())]), f.col)
