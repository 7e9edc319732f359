"""Stamps never go back: over epochs, generations, drivers and clocks. The numbers are those of `sinks/stamps.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import SinkError
from tallystick.records import Attempt, Decision, Fingerprint, Record, Vote
from tallystick.sinks.stamps import (
    SLICES_MAX,
    WINDOW_ROWS,
    check_slice,
    newest_stamp_us,
    next_stamp_us,
    stamp_us,
    windows,
)
from tallystick.testing.sinks import context


def decided(epoch: int, first_us: int, rows: int) -> Record:
    votes = (Vote("s", 0, Fingerprint(rows, 0), {}), Vote("s", 1, Fingerprint(rows // 2, 0), {}))
    newest = newest_stamp_us(first_us, votes)
    return Record(Attempt(epoch, 1), Decision.COMMIT, votes=votes, stamp_us=newest)


@given(st.lists(st.tuples(st.integers(0, 10**16), st.integers(0, 5 * WINDOW_ROWS)), min_size=2, max_size=8))
def test_every_stamp_of_an_epoch_is_above_all_of_the_epoch_before(epochs: list[tuple[int, int]]) -> None:
    """Essay 2 and 4: whatever the clock says, and however many rows an epoch has."""
    records: list[Record] = []
    highest = 0
    for epoch, (clock_us, rows) in enumerate(epochs):
        first = next_stamp_us(clock_us, records)
        assert first >= clock_us
        assert first > highest
        slices = [(0, rows), (1, rows // 2)]
        used = [
            stamp_us(replace(context(epoch, slice_=slice_), stamp_us=first), window)
            for slice_, count in slices
            for window in range(-(-count // WINDOW_ROWS))
        ]
        assert len(set(used)) == len(used), "no two windows of an epoch share a stamp"
        highest = max([first, *used])
        records.append(decided(epoch, first, rows))
        assert records[-1].stamp_us >= highest


def test_what_was_aborted_does_not_count() -> None:
    """It was never applied; a zombie's clock must not push stamps ahead."""
    aborted = Record(Attempt(3, 1), Decision.ABORT, stamp_us=10**18)
    assert next_stamp_us(5, [aborted]) == 5
    assert next_stamp_us(5, []) == 5


def test_more_slices_than_stamps_are_refused_before_the_decision() -> None:
    check_slice(context(slice_=SLICES_MAX - 1))
    with pytest.raises(SinkError, match=r"more than 16384 slices .*coalesce"):
        check_slice(context(slice_=SLICES_MAX))


def test_a_window_is_handed_on_before_the_next_rows_are_read() -> None:
    """Memory is bounded by a window, however large the slice is."""
    read = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal read
        while True:
            read += 1000
            yield pa.RecordBatch.from_pydict({"id": list(range(1000))})

    cut = windows(endless())
    for number in range(1, 4):
        assert next(cut).num_rows == WINDOW_ROWS
        assert read == number * WINDOW_ROWS
