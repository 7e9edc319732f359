"""From Arrow to what the driver binds, and which rows Cassandra would refuse.

What is refused is told before the decision, with the row's key: afterwards a refused row could only stop the job.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError, SinkError
from tallystick.sinks.refusals import Refusal, where

KEY_BYTES_MAX = 65535
ROW_OVERHEAD_BYTES = 1024
ROW_BYTES_MAX = 16 << 20
"""Of a server that does not say: half of its default commit log segment, as of version 5.0."""


@dataclass(frozen=True)
class Layout:
    """What the driver found out about the table: column types, keys, and how large a row may be."""

    types: Mapping[str, str]
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    row_bytes_max: int = ROW_BYTES_MAX
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.partition + self.clustering)


def screen(layout: Layout, rows: pa.RecordBatch) -> Iterator[Refusal]:
    """Executor: the rows that the server would refuse, and why."""
    for name in layout.keys:
        column = rows.column(name)
        yield from where(column.is_null(), f"the key column {name} is null")
        if _is_bytes(column.type):
            if name in layout.clustering or len(layout.partition) == 1:
                too_long = pc.greater(pc.binary_length(column), KEY_BYTES_MAX)
                yield from where(too_long, f"the key column {name} has over {KEY_BYTES_MAX} bytes")
            if layout.partition == (name,):
                yield from where(pc.equal(pc.binary_length(column), 0), f"the partition key {name} is empty")
    for name in rows.schema.names:
        kind, column = layout.types.get(name, ""), rows.column(name)
        if kind == "ascii":
            yield from where(pc.invert(pc.string_is_ascii(column)), f"{name} is ascii and the text is not")
        elif kind in ("uuid", "timeuuid"):
            wrong = pc.invert(pc.match_substring_regex(column, _UUID_1 if kind == "timeuuid" else _UUID))
            yield from where(wrong, f"{name} is {kind} and the text is not")
        elif pa.types.is_list(column.type) or pa.types.is_map(column.type):
            yield from _with_nulls_inside(rows, name)
    yield from _too_large(layout, rows)


def refusal(table: str, layout: Layout, rows: pa.RecordBatch, found: Refusal) -> RowRefusedError:
    """What a refused row fails the epoch with: its key, and why."""
    key = {name: _shortened(rows.column(name)[found.place].as_py()) for name in layout.keys}
    return RowRefusedError(f"{table} cannot hold the row {key}: {found.why}. filter such rows out, or correct them")


_UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_UUID_1 = _UUID.replace("[0-9a-fA-F]{4}-", "[0-9a-fA-F]{4}-1[0-9a-fA-F]{3}-", 1).replace("[0-9a-fA-F]{4}-", "", 1)


def _with_nulls_inside(rows: pa.RecordBatch, name: str) -> Iterator[Refusal]:
    column = rows.column(name)
    inside = column.items if pa.types.is_map(column.type) else column.flatten()
    if inside.null_count:
        has_null = pa.array([value is not None and _null_inside(value) for value in column.to_pylist()], pa.bool_())
        yield from where(has_null, f"{name} has a null inside, which collections cannot hold")


def _null_inside(value: list[Any]) -> bool:
    return any(each is None or (isinstance(each, tuple) and each[1] is None) for each in value)


def _too_large(layout: Layout, rows: pa.RecordBatch) -> Iterator[Refusal]:
    """Columns of one batch are looked at together only if the batch itself is large enough to hold such a row."""
    limit = layout.row_bytes_max - ROW_OVERHEAD_BYTES
    if rows.nbytes <= limit:
        return
    for number in range(rows.num_rows):
        size = rows.slice(number, 1).nbytes
        if size > limit:
            yield Refusal(number, f"the row has {size} bytes, and the server takes {layout.row_bytes_max}")


def _shortened(value: Any) -> Any:
    return value[:50] + value[:0] + ("…" if isinstance(value, str) else b"...") if _long(value) else value


def _long(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) > 50


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def values(rows: pa.RecordBatch, types: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Executor: the rows as tuples that the driver can bind, in the order of the columns."""
    columns = [_pylist(rows.column(name), types[name]) for name in rows.schema.names]
    return zip(*columns, strict=True)


def last_of_each(
    rows: pa.RecordBatch, types: Mapping[str, str], keys: Sequence[str], keep_nulls: bool
) -> list[tuple[Any, ...]]:
    """One row for each key: the last one. Without ``keep_nulls`` a null says nothing, so what was said before stays."""
    places = [rows.schema.names.index(name) for name in keys]
    found: dict[Any, tuple[Any, ...]] = {}
    for row in values(rows, types):
        key = tuple(_hashable(row[place]) for place in places)
        if not keep_nulls and key in found:
            row = tuple(old if new is None else new for old, new in zip(found[key], row, strict=True))
        found[key] = row
    return list(found.values())


def _hashable(value: Any) -> Any:
    """Keys may be frozen collections."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple(sorted((key, _hashable(held)) for key, held in value.items()))
    return value


def _pylist(column: pa.Array, cql: str) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # whole milliseconds, rounded down: all that Cassandra keeps
        return pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    convert = _converter(column.type, cql)
    found = column.to_pylist()
    return found if convert is None else [None if value is None else convert(value) for value in found]


def _converter(kind: pa.DataType, cql: str) -> Callable[[Any], Any] | None:
    if cql in ("uuid", "timeuuid"):
        return uuid.UUID
    if pa.types.is_map(kind):
        return dict
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        raise SinkError("cassandra: collections of timestamps are not supported: make them bigint or text")
    return None
