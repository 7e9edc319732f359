"""One slice from its rows to its vote: what is refused goes out once, and the same rows again at a replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import RowRefusedError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Attempt, Fingerprint, Json, Mode, Outcome, Vote
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink
from tallystick.sinks.refusals import Refusal, screened, where, without
from tallystick.spark import slice_writer
from tallystick.spark.slice_writer import DEAD_LETTERS, SliceWriter

NUMBERS = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4)


class Picky(TransactionalSink[list[int]]):
    """Refuses numbers, and the second of two equal ones; what it holds is there for the test to see."""

    facts = SinkFacts("picky", Kind.TRANSACTIONAL, Mode.EXACTLY_ONCE, "a list", "a test")
    target = "picky"

    def __init__(self, *refused: int, unique: bool = False) -> None:
        self.refused, self.unique = refused, unique
        self.held: list[Any] = []

    def begin_transaction(self, context: SliceContext) -> Any:
        self.context = context
        return self.held

    def write(self, transaction: list[Any], rows: pa.RecordBatch) -> Sequence[Refusal]:
        found = list(where(pc.is_in(rows.column(0), pa.array(self.refused, pa.int64())), "not wanted"))
        if self.unique:
            numbers = rows.column(0).to_pylist()
            before = [[*transaction, *numbers[:place]] for place in range(len(numbers))]
            found += [Refusal(place, "twice") for place, n in enumerate(numbers) if n in before[place]]
        refused = screened(self.context, found, lambda one: RowRefusedError(f"{rows.column(0)[one.place]}: {one.why}"))
        transaction += without(rows, refused).column(0).to_pylist()
        return refused

    def pre_commit(self, transaction: list[Any]) -> Json:
        return {"rows": len(transaction)}

    def rollback(self, transaction: list[Any]) -> None:
        transaction.clear()

    def commit(self, committable: Json) -> Outcome:
        return Outcome.COMMITTED

    def abort(self, committable: Json) -> None: ...

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return ()


class Letters(Picky):
    def write(self, transaction: list[Any], rows: pa.RecordBatch) -> Sequence[Refusal]:
        transaction += rows.to_pylist()
        return ()


def context(sink: str, dead_letters: bool = True) -> SliceContext:
    return SliceContext("job", Attempt(4, 1), sink, 2, 9, dead_letters=dead_letters)


def written(
    sink: Picky, batches: list[list[int]], wanted: tuple[bool, bool] = (True, True), decided: Vote | None = None
) -> tuple[list[Any], Vote, Vote]:
    """The letters, and the votes of the sink and of the letters."""
    known = None if decided is None else decided.refused
    writer = SliceWriter(sink, context("picky", decided is None), wanted[0], known)
    letters = Letters()
    second = SliceWriter(letters, context(DEAD_LETTERS, False), wanted[1])
    for numbers in batches:
        rows = pa.record_batch({"n": pa.array(numbers, pa.int64())})
        for refused in writer.write(rows, pa.array([n * 7 - 20 for n in numbers], pa.int64())):
            second.write_letters(refused)
    return letters.held, writer.vote(), second.vote()


def numbers_in(letters: list[Any]) -> list[int]:
    return [json.loads(letter["row"])["n"] for letter in letters]


def test_refused_rows_are_letters_and_all_of_them_are_counted() -> None:
    sink = Picky(3, 5)
    letters, vote, of_letters = written(sink, [[1, 3], [], [5, 3, 2]])
    assert sink.held == [1, 2]
    assert numbers_in(letters) == [3, 5, 3]
    assert [letter["id"] for letter in letters] == ["job-picky-4-2-0", "job-picky-4-2-1", "job-picky-4-2-2"]
    assert letters[0] == {
        "id": "job-picky-4-2-0",
        "job": "job",
        "sink": "picky",
        "epoch": 4,
        "slice": 2,
        "reason": "not wanted",
        "row": '{"n": 3}',
    }
    assert (vote.fingerprint.rows, vote.refused_rows, vote.committable) == (5, 3, {"rows": 2})
    assert (of_letters.fingerprint.rows, of_letters.refused_rows) == (3, 0)
    assert Vote.from_json(json.loads(json.dumps(vote.to_json()))) == vote


@given(NUMBERS, st.booleans(), st.tuples(st.booleans(), st.booleans()))
def test_a_replay_gives_the_same_letters_and_fingerprints_whoever_is_written(
    batches: list[list[int]], unique: bool, wanted: tuple[bool, bool]
) -> None:
    """The server has changed its mind meanwhile: nobody asks it again, also where of two equal rows one was refused."""
    first = Picky(3, 5, unique=unique)
    letters, vote, of_letters = written(first, batches)
    again = Picky()
    replayed, second, second_of_letters = written(again, batches, wanted, vote)
    assert (second.fingerprint, second.refused) == (vote.fingerprint, vote.refused)
    assert second_of_letters.fingerprint == of_letters.fingerprint
    assert sorted(again.held) == (sorted(first.held) if wanted[0] else [])
    said = sorted((letter["row"], letter["reason"]) for letter in letters)
    assert sorted((letter["row"], letter["reason"]) for letter in replayed) == (said if wanted[1] else [])
    assert {letter["id"] for letter in replayed} == ({letter["id"] for letter in letters} if wanted[1] else set())


def test_a_row_that_is_refused_only_at_the_replay_fails_it() -> None:
    _, vote, _ = written(Picky(3), [[1, 3]])
    with pytest.raises(RowRefusedError, match="1: not wanted"):
        written(Picky(1), [[1, 3]], decided=vote)


def test_too_many_are_no_handful_of_bad_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_writer, "REFUSED_MAX", 3)
    assert written(Picky(1), [[1, 1, 1]])[1].refused_rows == 3
    with pytest.raises(RowRefusedError, match=r'refuses over 3 rows of one slice.*one of them is {"n": 1}: not wanted'):
        written(Picky(1), [[1, 1], [1, 1]])


def test_a_letter_that_its_sink_refuses_is_told_with_the_first_reason() -> None:
    class Full(Letters):
        def write(self, transaction: list[Any], rows: pa.RecordBatch) -> Sequence[Refusal]:
            raise RowRefusedError("too large")

    writer = SliceWriter(Picky(1), context("picky"), True)
    letters = SliceWriter(Full(), context(DEAD_LETTERS, False), True)
    rows = pa.record_batch({"n": pa.array([1], pa.int64())})
    [refused] = writer.write(rows, pa.array([1], pa.int64()))
    with pytest.raises(RowRefusedError, match=r"a row that picky refuses \(not wanted\): too large"):
        letters.write_letters(refused)


def test_an_empty_slice_votes_for_nothing() -> None:
    assert written(Picky(), [[]])[1] == Vote("picky", 2, Fingerprint())
