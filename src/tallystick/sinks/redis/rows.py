"""Rows from Arrow to chunks that a script takes apart: no Python object per row.

A row is the arguments of one command, as ``N, length, bytes, length, bytes, …`` with numbers of four bytes, the highest
first. Arrow joins the columns, so the rows of a batch lie one after the other in its memory, and a chunk is a part of
that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError
from tallystick.sinks.refusals import Refusal, where

CHUNK_ROWS = 1000
CHUNK_BYTES = 256 << 10
ROW_BYTES_MAX = 256 << 20
SHOWN = 80

ARGUMENTS = {"set": ("key", "value"), "incrby": ("key", "value"), "zadd": ("key", "score", "member")}
FIELDS = ("hset", "xadd")
"""Commands that take every column beside the key as a field; one that is null is left out."""
COMMANDS = (*ARGUMENTS, *FIELDS)


def screen(rows: pa.RecordBatch, command: str, key_prefix: str) -> Iterator[Refusal]:
    """The rows that no command can be made of, or that no server takes."""
    for name in rows.schema.names if command not in FIELDS else ["key"]:
        yield from where(rows.column(name).is_null(), f"has no {name} (null)")
    if command in FIELDS:
        nothing = np.ones(rows.num_rows, bool)
        for name in _fields_of(rows):
            nothing &= rows.column(name).is_null().to_numpy(zero_copy_only=False)
        yield from where(pa.array(nothing), "has no field: all of them are null")
    if command == "zadd":
        score = rows.column("score").cast(pa.string())
        yield from where(pc.equal(pc.ascii_lower(score), "nan"), "has a score that is not a number (NaN)")
    sizes = _sizes(rows, command, key_prefix)
    for place in np.flatnonzero(sizes > ROW_BYTES_MAX):
        yield Refusal(int(place), f"has {sizes[place]} bytes, needed at most {ROW_BYTES_MAX}")


def refusal(rows: pa.RecordBatch, found: Refusal) -> RowRefusedError:
    """What a refused row fails the epoch with: its key, and why."""
    key = _bytes(rows.column("key"))[found.place].as_py()
    return RowRefusedError(f"redis: the row with the key {shown(key)} {found.why}. nothing was published")


def chunks(rows: pa.RecordBatch, command: str, key_prefix: str) -> Iterator[bytes]:
    """The rows of a batch, in order; `screen` has let them pass."""
    table = {name: _bytes(rows.column(name)) for name in rows.schema.names}
    keys = prefixed(rows, key_prefix)
    encoded = _fields(table, keys, command) if command in FIELDS else _arguments(table, keys, command)
    offsets = _offsets(encoded)
    data = encoded.buffers()[2]
    view = memoryview(data) if data is not None else memoryview(b"")
    start = 0
    while start < len(encoded):
        fits = int(np.searchsorted(offsets, offsets[start] + CHUNK_BYTES, "right")) - 1
        end = min(max(fits, start + 1), start + CHUNK_ROWS, len(encoded))
        yield bytes(view[offsets[start] : offsets[end]])
        start = end


def prefixed(rows: pa.RecordBatch, key_prefix: str) -> pa.Array:
    """The keys as Redis has them."""
    keys = _bytes(rows.column("key"))
    return pc.binary_join_element_wise(pa.scalar(key_prefix.encode()), keys, b"") if key_prefix else keys


def _arguments(table: dict[str, pa.Array], keys: pa.Array, command: str) -> pa.Array:
    names = ARGUMENTS[command]
    columns = [keys if name == "key" else table[name] for name in names]
    parts = [part for column in columns for part in (_length(column), column)]
    return pc.binary_join_element_wise(pa.scalar(_number(len(names))), *parts, b"")


def _fields(table: dict[str, pa.Array], keys: pa.Array, command: str) -> pa.Array:
    names = [name for name in table if name != "key"]
    fixed = [_number(1) + b"*"] if command == "xadd" else []
    present = np.zeros(len(keys), np.uint32)
    parts: list[Any] = []
    for name in names:
        column = table[name]
        present += column.is_valid().to_numpy(zero_copy_only=False)
        title = _number(len(name.encode())) + name.encode()
        parts.append(pc.fill_null(pc.binary_join_element_wise(pa.scalar(title), _length(column), column, b""), b""))
    count = _numbers(1 + len(fixed) + 2 * present)
    return pc.binary_join_element_wise(count, _length(keys), keys, *map(pa.scalar, fixed), *parts, b"")


def _fields_of(rows: pa.RecordBatch) -> list[str]:
    return [name for name in rows.schema.names if name != "key"]


def _sizes(rows: pa.RecordBatch, command: str, key_prefix: str) -> np.ndarray[Any, Any]:
    """How many bytes each row has in a chunk."""
    sizes = np.full(rows.num_rows, 4 + len(key_prefix.encode()) + (5 if command == "xadd" else 0), np.int64)
    for name in rows.schema.names:
        column = _bytes(rows.column(name))
        title = 4 + len(name.encode()) if command in FIELDS and name != "key" else 0
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        sizes += np.where(valid, 4 + title + lengths, 0)
    return sizes


def shown(key: bytes | None) -> str:
    return "null" if key is None else repr(key[:SHOWN].decode("utf-8", "backslashreplace"))


def _bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _length(column: pa.Array) -> pa.Array:
    return _numbers(pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False))


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    data = pa.py_buffer(values.astype(">u4").tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(values), [None, data]).cast(pa.binary())


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _offsets(column: pa.Array) -> np.ndarray[Any, Any]:
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
