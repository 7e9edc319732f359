"""Hive-style partition folders: ``country=de/day=2026-01-31``, written the way Spark writes and reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""Null and the empty string both end up here, as in Spark."""
NAME_BYTES_MAX = 255
"""What a folder's name may hold on POSIX file systems. Checked before the decision: a commit could not get past it."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}


def escape(text: str) -> str:
    """Percent-encode exactly the characters that Spark does."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def folder_of(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """The relative folder of one combination of partition values; "" if there are no partition columns."""
    names = []
    for column, value in zip(columns, values, strict=True):
        name = f"{escape(column)}={escape(value) if value else NULL_NAME}"
        if len(os.fsencode(name)) > NAME_BYTES_MAX:
            raise RowRefusedError(
                f"a value of the partition column {column!r} makes a folder name of {len(os.fsencode(name))} bytes, a "
                f"file system takes {NAME_BYTES_MAX}: partition by a shorter value. found {value!r:.80}",
                column=column,
            )
        names.append(name)
    return "/".join(names)


def values_of(folder: str, columns: Sequence[str]) -> list[str | None]:
    """The partition values that `folder_of` made a folder of."""
    names = folder.split("/")[: len(columns)]
    texts = [name.partition("=")[2] for name in names]
    return [None if text == NULL_NAME else unescape(text) for text in texts]


def unescape(text: str) -> str:
    return re.sub(r"%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give (folder, rows without the partition columns) for each combination of values in the batch.

    The order of rows within a folder is kept. Work per row is done by Arrow and numpy; Python runs per folder. Each
    part is a copy, so that a rare value that waits in a buffer does not hold whole batches in memory.
    """
    if batch.num_rows == 0:
        return
    if not columns:
        yield "", batch
        return
    data = batch.drop_columns(list(columns))
    keys = [pc.cast(batch.column(name), pa.string()).dictionary_encode(null_encoding="encode") for name in columns]
    groups = _group(keys, batch.num_rows)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        first = int(order[start])
        folder = folder_of(columns, [key[first].as_py() for key in keys])
        yield folder, data if end - start == batch.num_rows else data.take(pa.array(order[start:end]))


def _group(keys: Sequence[pa.DictionaryArray], rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number the combinations of values. Numbers are made dense after each column, so they cannot overflow."""
    groups = np.zeros(rows, dtype=np.int64)
    for key in keys:
        codes = key.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, groups = np.unique(groups * len(key.dictionary) + codes, return_inverse=True)
    return groups.astype(np.int64)
