"""Stamps: one number per row by which a server can tell the newer of two writes, whoever sends them and whenever.

Cassandra keeps the cell with the highest write timestamp, OpenSearch the document with the highest version. If each
row carries the stamp of its epoch, a write that comes late (of a driver that was taken for dead, of a request that lost
its way) cannot overwrite what a later epoch wrote. How a stamp is made, and why it is right:

1.  *Microseconds since 1970*, by the driver's clock when the epoch is prepared. So our writes stand in the right order
    with those of other programs, with deletes by hand, and with those of an earlier job on the same table: all of them
    go by the clock. A bare epoch number would lose against every one of them, silently.
2.  *Never backwards.* The clock is only a lower bound: an epoch's stamp is above every stamp that the journal knows of
    earlier decisions, whatever clocks and machines do. What counts was decided, and is in the journal, before the next
    attempt asks; so epochs, and the generations of one epoch, are always in order.
3.  *Fixed by the decision.* The stamp travels in the committable: applying a slice again writes the same stamps.
4.  *One row wins, whole.* If one key comes twice in an epoch, a tie would be broken cell by cell. So no two rows of an
    epoch with one key have the same stamp: the rows of a slice are cut into windows of `WINDOW_ROWS`, of which each
    holds a key once (the last row stays), and ``stamp + window * SLICES_MAX + slice`` is different for every window of
    every slice. The later window wins, and of the same window the slice with the higher number.
5.  *Not ahead of the clock for long.* A window is 16 ms; no Python client writes `WINDOW_ROWS` rows in that time, so
    the clock has passed the last stamp of an epoch when the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tallystick.errors import SinkError
from tallystick.records import Decision, Record, Vote
from tallystick.sinks.base import SliceContext

WINDOW_ROWS = 10_000
SLICES_MAX = 1 << 14
AHEAD_AT_MOST_US = 3600 * 1_000_000
"""More than this above the clock is worth a word: a machine's clock was far off once, and other writers lose."""


def next_stamp_us(clock_us: int, records: Iterable[Record]) -> int:
    """Driver: the first stamp of an attempt. ``records`` are all decisions that the journal still has (essay 2)."""
    decided = (record.stamp_us for record in records if record.decision is Decision.COMMIT)
    return max(clock_us, 1 + max(decided, default=0))


def newest_stamp_us(first_us: int, votes: Iterable[Vote]) -> int:
    """Driver: no row of these votes has a higher stamp."""
    rows = max((vote.fingerprint.rows for vote in votes), default=0)
    return first_us + -(-rows // WINDOW_ROWS) * SLICES_MAX


def stamp_us(context: SliceContext, window: int) -> int:
    """Where a window is applied: the stamp of its rows (essay 4)."""
    return context.stamp_us + window * SLICES_MAX + context.slice


def check_slice(context: SliceContext) -> None:
    """Executor, before anything is decided: more slices than there are numbers for cannot be kept in order."""
    if context.slice >= SLICES_MAX:
        raise SinkError(
            f"slice {context.slice} of {context.sink}: found more than {SLICES_MAX} slices in an epoch, and there are "
            "no more stamps. use fewer partitions: rows.coalesce(…), or a lower spark.sql.shuffle.partitions"
        )


def windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, `WINDOW_ROWS` at a time, however they were batched. At most one is in memory."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, WINDOW_ROWS - rows)
            held.append(part)
            rows, start = rows + part.num_rows, start + part.num_rows
            if rows == WINDOW_ROWS:
                yield _joined(held)
                held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
