"""Rows from Arrow to COPY: as CSV, made by Arrow without a Python object per value; and back from a line to its row."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

BLOCK_BYTES = 4 << 20
SHOWN = 300
_FORMAT = csv.WriteOptions(include_header=False)
BAD_LETTER = "22021"
_LINE = re.compile(r"^COPY .*?, \D*(?P<line>\d+)", re.MULTILINE)


def blocks(rows: pa.RecordBatch) -> Iterator[memoryview]:
    """The rows as CSV, in blocks of about `BLOCK_BYTES`. Strings are quoted and nulls are not, as COPY wants it."""
    step = max(1, rows.num_rows * BLOCK_BYTES // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        csv.write_csv(rows.slice(start, step), sink, _FORMAT)
        yield memoryview(sink.getvalue())


def numbered(rows: pa.RecordBatch, column: str, first: int) -> pa.RecordBatch:
    """With the place of each row in its slice."""
    places = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
    return rows.append_column(column, places)


def longest_bytes(rows: pa.RecordBatch, columns: Collection[str]) -> int:
    """The sizes of the largest texts in these columns, together."""
    lengths = [
        pc.max(pc.binary_length(column)).as_py() or 0
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if name in columns and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
    ]
    return sum(lengths)


def row_at(rows: pa.RecordBatch, context: str | None, state: str | None = None) -> int | None:
    """Which row the server means by ``COPY …, line N``; None if it does not say.

    Texts may have several lines. In the first row the server does not know yet what ends a line, and counts returns.
    Letters that it cannot hold it finds while it reads ahead, and then names the line where it parses: not that one.
    There is but one such letter in what Arrow holds.
    """
    if state == BAD_LETTER:
        return _first_with_zero(rows)
    said = _LINE.search(context or "")
    if said is None:
        return None
    lines = np.ones(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lines[:1] += pc.count_substring(column[:1], "\r").fill_null(0).to_numpy(zero_copy_only=False)
            lines[1:] += pc.count_substring(column[1:], "\n").fill_null(0).to_numpy(zero_copy_only=False)
    place = int(np.searchsorted(np.cumsum(lines), int(said["line"])))
    return place if place < rows.num_rows else None


def _first_with_zero(rows: pa.RecordBatch) -> int | None:
    places = [
        place
        for column in rows.columns
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if (place := pc.index(pc.fill_null(pc.match_substring(column, "\0"), False), True).as_py()) >= 0
    ]
    return min(places, default=None)


def shown(rows: pa.RecordBatch, place: int, key: Sequence[str]) -> str:
    """The key of a row, for people; the row itself, cut short, if it has no key."""
    row: dict[str, Any] = rows.slice(place, 1).to_pylist()[0]
    chosen = {name: row[name] for name in key if name in row} or row
    text = json.dumps(chosen, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
