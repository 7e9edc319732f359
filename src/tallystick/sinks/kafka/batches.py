"""Rows as Kafka stores them: batches of records (version 2 of the format), made column by column.

No Python object stands for a row on the way, unless there are only a few. What is small and varies from record to
record, lengths and numbers of one to five bytes each, is laid out by numpy for all records at once; Arrow then joins it
with keys and values in one pass. A record is::

    length  attributes(0)  time(+0)  number in its batch  length key  length value  headers

and a batch is a head of 61 bytes with a checksum, and its records one after the other, compressed together.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import SinkError
from tallystick.kafka.clients import checksums
from tallystick.sinks.kafka.producer import Records, named

HEAD_BYTES = 61
FEW = 100
"""So many records are made one by one sooner than all at once."""
RECORD_HEAD_BYTES = 26
"""At the most: what a record has beside key, value and headers."""
TRANSACTIONAL = 0x10

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Compress: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Body:
    """Records of one batch, not compressed yet; ``first`` and ``largest`` are places among those given."""

    count: int
    records: pa.Buffer
    first: int
    largest: int


def bodies(records: Records, batch_bytes: int, cuts: Sequence[int] = ()) -> Iterator[Body]:
    """The records in their order, in as many batches as it takes for none to be larger, if its records allow that.

    At each of the ``cuts``, rising places among them, another batch begins: so the records of many partitions are laid
    out as fast as those of one.
    """
    if not len(records):
        return
    values, keys = binary(records.value), None if records.key is None else binary(records.key)
    tails = None if records.headers is None else _headers(records.topic, records.headers)
    sizes = _sizes(values) + (0 if keys is None else _sizes(keys)) + (0 if tails is None else _sizes(tails))
    starts = _starts(sizes + RECORD_HEAD_BYTES, batch_bytes - HEAD_BYTES, cuts)
    lay = _one_by_one if len(records) <= FEW else _all_at_once
    joined, ends = lay(values, keys, tails, starts)
    for first, last in itertools.pairwise(starts):
        begin, end = int(ends[first]), int(ends[last])
        largest = int(first) + int(np.argmax(sizes[first:last]))
        yield Body(int(last - first), joined.slice(begin, end - begin), int(first), largest)


def record_bytes(records: Records) -> Numbers:
    """Key, value and headers of each record, without what the format adds."""
    sizes = _sizes(binary(records.value))
    if records.key is not None:
        sizes = sizes + _sizes(binary(records.key))
    if records.headers is not None:
        sizes = sizes + np.array([_header_size(pairs) for pairs in records.headers.to_pylist()], np.int64)
    return sizes


def sealed(
    body: pa.Buffer, count: int, producer_id: int, producer_epoch: int, sequence: int, compression: Compression
) -> bytes:
    """A batch as it goes over the wire. The broker gives it its place and the records' offsets."""
    now_ms = int(time.time() * 1000)
    attributes = TRANSACTIONAL | compression.code
    head = struct.pack(">hiqqqhii", attributes, count - 1, now_ms, now_ms, producer_id, producer_epoch, sequence, count)
    packed = compression.compress(body)
    crc32c = checksums().crc32c
    checksum = crc32c(packed, crc32c(head))
    length = HEAD_BYTES - 12 + len(packed)
    return b"".join((struct.pack(">qiibI", 0, length, -1, 2, checksum), head, packed))


def resealed(data: bytes, producer_id: int, producer_epoch: int) -> bytes:
    """The same batch from another producer."""
    after = b"".join((data[_CHECKED:_PRODUCER], struct.pack(">qh", producer_id, producer_epoch), data[_SEQUENCE:]))
    return b"".join((data[: _CHECKED - 4], struct.pack(">I", checksums().crc32c(after)), after))


_CHECKED, _PRODUCER, _SEQUENCE = 21, 43, 53
"""Where in the head of a batch what the checksum is of begins, the producer's id and epoch, and what is behind them."""


# -- compression -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compression:
    """One of Kafka's, by its code in a batch."""

    code: int
    compress: Compress

    @classmethod
    def of(cls, name: str, level: int | None = None) -> Compression:
        if name == "none":
            return cls(0, lambda body: body)
        code, codec = _CODECS[name]
        made = pa.Codec(codec) if level is None else pa.Codec(codec, compression_level=level)
        if name == "lz4":
            return cls(code, lambda body: _lz4_frame(made, body))
        # As bytes: Arrow's buffer keeps the size that it had before it was cut to what was needed.
        return cls(code, lambda body: made.compress(body, asbytes=True))


_CODECS: Mapping[str, tuple[int, str]] = {
    "gzip": (1, "gzip"),
    "snappy": (2, "snappy"),
    "lz4": (3, "lz4_raw"),
    "zstd": (4, "zstd"),
}
_LZ4_HEAD = bytes.fromhex("04224d18607073")
"""Blocks that stand alone, of 4 MiB at the most. Arrow's own frames link their blocks, which Java's clients refuse."""
_LZ4_BLOCK_BYTES = 4 << 20
_LZ4_AS_IS = 1 << 31


def _lz4_frame(codec: pa.Codec, body: pa.Buffer) -> bytes:
    parts: list[Any] = [_LZ4_HEAD]
    for first in range(0, body.size, _LZ4_BLOCK_BYTES):
        block = body.slice(first, min(_LZ4_BLOCK_BYTES, body.size - first))
        packed = codec.compress(block, asbytes=True)
        if len(packed) < block.size:
            parts += [struct.pack("<I", len(packed)), packed]
        else:
            parts += [struct.pack("<I", block.size | _LZ4_AS_IS), block]
    return b"".join([*parts, bytes(4)])


# -- columns -----------------------------------------------------------------------------------------------------------


def binary(values: pa.Array) -> pa.Array:
    """Keys or values with 32-bit offsets."""
    if pa.types.is_binary(values.type):
        return values
    if pa.types.is_large_binary(values.type):
        return values.cast(pa.binary())
    raise SinkError(f"kafka: keys and values are binary, found {values.type}")


def _sizes(values: pa.Array) -> Numbers:
    lengths: Numbers = np.diff(_offsets(values).astype(np.int64))
    return np.where(_missing(values), 0, lengths) if values.null_count else lengths


def _offsets(values: pa.Array) -> Any:
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _missing(values: pa.Array) -> Any:
    return values.is_null().to_numpy(zero_copy_only=False)


def _starts(sizes: Numbers, limit: int, cuts: Sequence[int]) -> Numbers:
    """Where each batch begins, and where the last one ends."""
    total = np.concatenate(([0], np.cumsum(sizes)))
    found = [0]
    for cut in (*cuts, len(sizes)):
        while found[-1] < cut:
            fitting = int(np.searchsorted(total, total[found[-1]] + limit, "right")) - 1
            found.append(min(max(fitting, found[-1] + 1), cut))
    return np.array(found, np.int64)


def _one_by_one(
    values: pa.Array, keys: pa.Array | None, tails: pa.Array | None, starts: Numbers
) -> tuple[pa.Buffer, Numbers]:
    """What `_all_at_once` does."""
    count = len(values)
    columns = (values.to_pylist(), *(_listed(column, count) for column in (keys, tails)))
    numbers = [number - first for first, last in itertools.pairwise(starts.tolist()) for number in range(first, last)]
    made = [one_record(*each) for each in zip(numbers, *columns, strict=True)]
    return pa.py_buffer(b"".join(made)), np.cumsum([0, *map(len, made)])


def one_record(number: int, value: bytes | None, key: bytes | None, tail: bytes | None = None) -> bytes:
    """The record with this number in its batch."""
    inside = b"".join((b"\0\0", _varint(number), *_with_length(key), *_with_length(value), tail or b"\0"))
    return _varint(len(inside)) + inside


def _with_length(data: bytes | None) -> tuple[bytes, ...]:
    return (_varint(-1),) if data is None else (_varint(len(data)), data)


def _listed(column: pa.Array | None, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()


def _all_at_once(
    values: pa.Array, keys: pa.Array | None, tails: pa.Array | None, starts: Numbers
) -> tuple[pa.Buffer, Numbers]:
    """All records one after the other, and where each begins and the last one ends."""
    count = len(values)
    numbers = np.arange(count) - np.repeat(starts[:-1], np.diff(starts))
    value_sizes, tail_sizes = _sizes(values), 1 if tails is None else _sizes(tails)
    value_field = _zigzag(np.where(_missing(values), -1, value_sizes) if values.null_count else value_sizes)
    number_field = _zigzag(numbers)
    if keys is None:
        inside = 3 + _width(number_field) + _width(value_field) + value_sizes + tail_sizes
        pieces = [_laid_out([_zigzag(inside), b"\0\0", number_field, b"\x01", value_field]), values]
    else:
        key_sizes = _sizes(keys)
        key_field = _zigzag(np.where(_missing(keys), -1, key_sizes) if keys.null_count else key_sizes)
        inside = 2 + _width(number_field) + _width(key_field) + key_sizes + _width(value_field) + value_sizes
        inside += tail_sizes
        pieces = [
            _laid_out([_zigzag(inside), b"\0\0", number_field, key_field]),
            keys,
            _laid_out([value_field]),
            values,
        ]
    last: Any = b"\0" if tails is None else tails
    joined = pc.binary_join_element_wise(*pieces, last, b"", null_handling="replace", null_replacement=b"")
    ends = _offsets(joined).astype(np.int64)
    return joined.buffers()[2], ends


def _headers(topic: str, headers: pa.Array) -> pa.Array:
    """What a record has behind its value: the number of headers, their names and values."""
    return pa.array([_header_bytes(named(topic, pairs)) for pairs in headers.to_pylist()], pa.binary())


def _header_size(pairs: Any) -> int:
    return sum(len(one["key"] or "") + len(one["value"] or b"") for one in pairs or () if one is not None)


def _header_bytes(pairs: list[tuple[str, bytes | None]]) -> bytes:
    parts = [_varint(len(pairs))]
    for name, value in pairs:
        parts += (*_with_length(name.encode()), *_with_length(value))
    return b"".join(parts)


# -- numbers of variable length ----------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    left, made = (number << 1) ^ (number >> 63), bytearray()
    while left > 127:
        made.append(left & 127 | 128)
        left >>= 7
    made.append(left)
    return bytes(made)


def _zigzag(numbers: Any) -> Numbers:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …"""
    folded: Numbers = (numbers << 1) ^ (numbers >> 63)
    return folded


def _width(zigzag: Numbers) -> Numbers:
    width = np.ones(len(zigzag), np.int64)
    most = int(zigzag.max(initial=0))
    for bits in (7, 14, 21, 28):
        if most >> bits:
            width += zigzag >= 1 << bits
    return width


def _laid_out(fields: list[Numbers | bytes]) -> pa.Array:
    """For each record its fields one after the other: a number of its own, or bytes that are the same for all."""
    widths = [len(field) if isinstance(field, bytes) else _width(field) for field in fields]
    count = next(len(field) for field in fields if not isinstance(field, bytes))
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(sum(widths) + np.zeros(count, np.int64), out=ends[1:])
    laid_out = np.zeros(int(ends[-1]), np.uint8)
    at = ends[:-1].copy()
    for field, width in zip(fields, widths, strict=True):
        if isinstance(field, bytes):
            for place, byte in enumerate(field):
                if byte:
                    laid_out[at + place] = byte
        else:
            _lay_out(laid_out, at, field, width)
        at += width
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(laid_out)]
    )


def _lay_out(laid_out: Any, at: Numbers, field: Numbers, width: Any) -> None:
    """Seven bits a byte, the lowest first; all but the last have the eighth bit set."""
    for place in range(int(width.max(initial=0))):
        wide = width > place
        more = width > place + 1
        bits = (field >> (7 * place)) & 0x7F | np.where(more, 0x80, 0)
        if wide.all():
            laid_out[at + place] = bits
        else:
            laid_out[at[wide] + place] = bits[wide]
