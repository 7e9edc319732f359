"""Several slices of one task: each a transaction of its own, pre-committed together, none forgotten when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from tallystick.errors import EpochError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Attempt, Fingerprint, Json, Mode, Outcome
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink
from tallystick.spark.slice_writer import SliceWriter
from tallystick.spark.task_slices import WAITING_BYTES, WAITING_MAX, Slice, TaskSlices


@dataclass
class Opened:
    slice: int
    rows: list[int] = field(default_factory=list)


class Noting(TransactionalSink[Opened]):
    """Notes what happens to its transactions; ``fails_at`` is the slice that cannot be pre-committed."""

    facts = SinkFacts("noting", Kind.TRANSACTIONAL, Mode.EXACTLY_ONCE, "a list", "a test")
    target = "noting"

    together = True

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.groups: list[list[int]] = []
        self.pre_committed: dict[int, list[int]] = {}
        self.rolled_back: list[int] = []

    def begin_transaction(self, context: SliceContext) -> Opened:
        return Opened(context.slice)

    def write(self, transaction: Opened, rows: pa.RecordBatch) -> None:
        transaction.rows += rows.column(0).to_pylist()

    def pre_commit(self, transaction: Opened) -> Json:
        if transaction.slice == self.fails_at:
            raise SinkError("no")
        self.pre_committed[transaction.slice] = transaction.rows
        return transaction.slice

    def pre_commit_all(self, transactions: Sequence[Opened]) -> Iterator[Json]:
        self.groups.append([one.slice for one in transactions])
        return super().pre_commit_all(transactions)

    def rollback(self, transaction: Opened) -> None:
        self.rolled_back.append(transaction.slice)

    def commit(self, committable: Json) -> Outcome:
        return Outcome.COMMITTED

    def abort(self, committable: Json) -> None: ...

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return ()


class OneByOne(Noting):
    together = False


def slices_of(*sinks: Noting) -> Callable[[int], Slice]:
    def make(number: int) -> Slice:
        contexts = [SliceContext("job", Attempt(0, 1), f"sink{at}", number, 7) for at in range(len(sinks))]
        writers = [SliceWriter(sink, context, True) for sink, context in zip(sinks, contexts, strict=True)]
        return Slice(number, writers, None)

    return make


def write(slices: TaskSlices, number: int, *rows: int, size: int = 8) -> None:
    batch, hashes = pa.record_batch({"n": pa.array(rows, pa.int64())}), pa.array(rows, pa.int64())
    for writer in slices.taking(number, size).outputs:
        assert not list(writer.write(batch, hashes))


def test_each_slice_votes_for_its_own_rows() -> None:
    first, second = Noting(), Noting()
    slices = TaskSlices(slices_of(first, second))
    write(slices, 4, 1, 2)
    write(slices, 4, 3)
    write(slices, 9, 5)
    votes = slices.votes()
    assert [(vote.sink, vote.slice, vote.fingerprint, vote.committable) for vote in votes] == [
        (sink, number, fingerprint, number)
        for sink in ("sink0", "sink1")
        for number, fingerprint in ((4, Fingerprint(3, 6)), (9, Fingerprint(1, 5)))
    ]
    assert first.pre_committed == second.pre_committed == {4: [1, 2, 3], 9: [5]}
    assert first.groups == [[4, 9]], "both at once"


def test_so_many_wait_for_each_other_and_no_more() -> None:
    sink, count = Noting(), 2 * WAITING_MAX + 3
    slices = TaskSlices(slices_of(sink))
    for number in range(count):
        write(slices, number, number)
    assert [vote.slice for vote in slices.votes()] == list(range(count))
    assert [len(group) for group in sink.groups] == [WAITING_MAX, WAITING_MAX, 3]


def test_large_ones_do_not_wait() -> None:
    sink = Noting()
    slices = TaskSlices(slices_of(sink))
    for number, size in enumerate((8, WAITING_BYTES, 8, WAITING_BYTES // 2, WAITING_BYTES // 2, 8)):
        write(slices, number, number, size=size)
    slices.votes()
    assert sink.groups == [[0, 1], [2, 3, 4], [5]]


def test_where_a_sink_wants_no_company_its_slices_end_before_the_next_begin() -> None:
    alone, other = OneByOne(), Noting()
    slices = TaskSlices(slices_of(alone, other))
    for number in range(3):
        write(slices, number, number)
        assert sorted(alone.pre_committed) == list(range(number)), "all that came before"
    votes = slices.votes()
    assert alone.groups == [[0], [1], [2]]
    assert other.groups == [[0, 1, 2]]
    assert sorted((vote.sink, vote.slice) for vote in votes) == [(f"sink{at}", n) for at in range(2) for n in range(3)]


def test_one_that_fails_without_company_is_rolled_back_once() -> None:
    alone, other = OneByOne(fails_at=1), Noting()
    slices = TaskSlices(slices_of(alone, other))
    for number in range(2):
        write(slices, number, number)
    with pytest.raises(SinkError):
        slices.votes()
    slices.give_up()
    assert (sorted(alone.pre_committed), alone.rolled_back) == ([0], [1])
    assert (other.pre_committed, other.rolled_back) == ({}, [0, 1])


def test_an_empty_slice_votes_and_opens_nothing() -> None:
    sink = Noting()
    slices = TaskSlices(slices_of(sink))
    slices.taking(3, 0)
    [vote] = slices.votes()
    assert (vote.slice, vote.fingerprint, vote.committable) == (3, Fingerprint(), None)
    assert sink.groups == []


def test_no_rows_no_votes() -> None:
    assert TaskSlices(slices_of(Noting())).votes() == []


def test_what_is_not_pre_committed_when_one_fails_is_rolled_back() -> None:
    """The sink before it has pre-committed all of them: those are for the driver, like slice 0 of the failing one."""
    good, bad = Noting(), Noting(fails_at=1)
    slices = TaskSlices(slices_of(good, bad))
    for number in range(4):
        write(slices, number, number)
    with pytest.raises(SinkError):
        slices.votes()
    slices.give_up()
    assert sorted(good.pre_committed) == [0, 1, 2, 3]
    assert good.rolled_back == []
    assert sorted(bad.pre_committed) == [0]
    assert bad.rolled_back == [1, 2, 3]


def test_a_failure_amid_the_rows_rolls_back_all_that_wait() -> None:
    sink = Noting()
    slices = TaskSlices(slices_of(sink))
    for number in range(WAITING_MAX + 2):
        write(slices, number, number)
    slices.give_up()
    assert sorted(sink.pre_committed) == list(range(WAITING_MAX))
    assert sink.rolled_back == [WAITING_MAX, WAITING_MAX + 1]


def test_rows_of_a_slice_that_is_over_are_an_error() -> None:
    """It may be pre-committed by then: its vote would miss them."""
    slices = TaskSlices(slices_of(Noting()))
    write(slices, 0, 1)
    write(slices, 1, 2)
    with pytest.raises(EpochError, match="the rows of slice 0 came in two parts"):
        write(slices, 0, 3)


def test_rows_are_cut_where_another_partition_begins() -> None:
    from tallystick.spark.slices import SliceTask

    task = SliceTask("job", (), True, 1.0, 0, grouped=True)
    numbers = pa.array(np.array([2, 2, 5, 5, 5, 0], np.int32))
    batch = pa.RecordBatch.from_arrays([pa.array(range(6)), pa.array(range(6)), numbers], ["value", "h0", "slice"])
    found = [(number, rows.column(0).to_pylist(), rows.num_columns) for number, rows in task._by_slice(batch, 1)]
    assert found == [(2, [0, 1], 2), (5, [2, 3, 4], 2), (0, [5], 2)]
    assert list(task._by_slice(batch.slice(0, 0), 1)) == []
