"""What a topic takes: how large a record may be, and which partitions there are.

The broker's limit is for a batch, as it comes over the wire. So a batch must not be larger than the topic takes, or
small records would be refused together; and a record alone in its batch is as large as the format of batches makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.sinks.refusals import Refusal, where

RECORD_BYTES_MAX = 1_000_000
"""Unless ``max.request.size`` says something else: key, value and headers of one record."""
BATCH_BYTES = 61
"""The head of a batch (version 2 of the format)."""
UNCOMPRESSED = ("none", "inherit")

Sizes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Limits:
    """Of one topic, as the driver found it; None for what is not known."""

    batch_bytes: int | None = None
    partitions: int | None = None

    def refused(self, rows: pa.RecordBatch, record_bytes_max: int, compressed: bool = False) -> Iterator[Refusal]:
        """Records that are too large, or are for a partition that is not there. ``compressed``: how large a batch is
        then nobody knows before it is made."""
        names = rows.schema.names
        headers = [_headers(one) for one in rows.column("headers").to_pylist()] if "headers" in names else None
        if headers is not None:
            nameless = pa.array([any(name is None for name, _ in pairs) for pairs in headers], pa.bool_())
            yield from where(nameless, "a header has no name (null)")
        key = _lengths(rows, "key") if "key" in names else np.zeros(rows.num_rows, np.int64)
        value = _lengths(rows, "value")
        extra = _header_bytes(headers, rows.num_rows)
        record = key + value + extra
        for place in np.flatnonzero(record > record_bytes_max):
            yield Refusal(
                int(place), f"the record has {record[place]} bytes, and the producer takes {record_bytes_max}"
            )
        if self.batch_bytes is not None and not compressed:
            batch = BATCH_BYTES + _in_batch(key, value, extra)
            for place in np.flatnonzero(batch > self.batch_bytes):
                yield Refusal(
                    int(place),
                    f"the record has {batch[place]} bytes in its batch, and the topic takes {self.batch_bytes}",
                )
        if "partition" in names:
            yield from self._nowhere(rows.column("partition"))

    def _nowhere(self, partition: pa.Array) -> Iterator[Refusal]:
        yield from where(pc.less(partition, 0), "it names a partition below 0")
        if self.partitions is not None:
            wrong = pc.greater_equal(partition, self.partitions)
            yield from where(wrong, f"it names a partition that is not there: the topic has {self.partitions}")


def _lengths(rows: pa.RecordBatch, name: str) -> Sizes:
    lengths: Sizes = pc.binary_length(rows.column(name)).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _headers(pairs: Any) -> list[tuple[str | None, bytes | None]]:
    return [(None, None) if pair is None else (pair["key"], pair["value"]) for pair in pairs or ()]


def _header_bytes(headers: list[list[tuple[str | None, bytes | None]]] | None, count: int) -> Sizes:
    """Names, values and their lengths."""
    if headers is None:
        return np.zeros(count, np.int64)
    each = [sum(len((name or "").encode()) + len(value or b"") + 10 for name, value in pairs) for pairs in headers]
    return np.array(each, np.int64)


def _in_batch(key: Sizes, value: Sizes, headers: Sizes) -> Sizes:
    """One record, alone in its batch: attributes, two deltas of one byte, three lengths, the number of headers."""
    inside = 3 + _varint(key) + key + _varint(value) + value + 1 + headers
    return _varint(inside) + inside


def _varint(number: Sizes) -> Sizes:
    """Bytes of a zigzag number."""
    size = np.ones_like(number)
    for bits in (7, 14, 21, 28):
        size += 2 * number >= 1 << bits
    return size
