"""What is on disk: segments of blocks of records. Pure; all numbers are little-endian.

::

    segment   magic "TLYSEG01", log id (16 bytes), offset of its first record (u64), crc32 of these (u32); then blocks
    block     magic "TLYB", offset of its first record (u64), records (u32), bytes of its body (u32),
              crc32 of these and of the body (u32); then the body
    record    received at, in microseconds (i64), bytes of id (u16), of attributes (u32) and of value (u32); then these

A block is one group commit: it is written with one call, synced, and only then acknowledged. So it is whole or it was
never acknowledged. Attributes are a JSON object of texts; none at all is no byte.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.errors import ReceiverLogCorruptError

SEGMENT_MAGIC = b"TLYSEG01"
BLOCK_MAGIC = b"TLYB"
SEGMENT_HEAD = struct.Struct("<8s16sQI")
BLOCK_HEAD = struct.Struct("<4sQIII")
RECORD_HEAD = struct.Struct("<qHII")
ID_BYTES_MAX = (1 << 16) - 1
BODY_BYTES_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class Record:
    """One record as it was received. ``id`` is what repeats are known by; empty if the sender gave none."""

    value: bytes
    id: str = ""
    received_us: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockHead:
    """A block's place in the log; its records are those from ``first`` up to, not including, ``stop``."""

    first: int
    count: int
    body_bytes: int
    checksum: int

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def block_bytes(self) -> int:
        return BLOCK_HEAD.size + self.body_bytes


def segment_head(log_id: bytes, first: int) -> bytes:
    checksum = zlib.crc32(SEGMENT_MAGIC + log_id + first.to_bytes(8, "little"))
    return SEGMENT_HEAD.pack(SEGMENT_MAGIC, log_id, first, checksum)


def parse_segment_head(data: bytes | memoryview, where: str) -> tuple[bytes, int]:
    """The log's id and the first offset."""
    if len(data) >= SEGMENT_HEAD.size:
        magic, log_id, first, checksum = SEGMENT_HEAD.unpack_from(data)
        if magic == SEGMENT_MAGIC and segment_head(log_id, first)[-4:] == checksum.to_bytes(4, "little"):
            return log_id, first
    raise ReceiverLogCorruptError(
        f"{where} is no segment of a receiver log: its head is torn or not ours. restore it from a copy", file=where
    )


def encode_block(first: int, records: Sequence[Record], now_us: int = 0) -> bytes:
    """Records that do not say when they were received get ``now_us``."""
    body = b"".join(_encoded(record, now_us) for record in records)
    head = BLOCK_HEAD.pack(BLOCK_MAGIC, first, len(records), len(body), 0)[:-4]
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body


def encoded_bytes(record: Record) -> int:
    """How much of a block's body it takes, attributes by a rough guess."""
    return RECORD_HEAD.size + len(record.value) + len(record.id) + 64 * len(record.attributes)


def _encoded(record: Record, now_us: int) -> bytes:
    name = record.id.encode()
    if len(name) > ID_BYTES_MAX:
        raise ReceiverLogCorruptError(f"an id of {len(name)} bytes cannot be logged, needed at most {ID_BYTES_MAX}")
    attributes = _attributes(record.attributes) if record.attributes else b""
    head = RECORD_HEAD.pack(record.received_us or now_us, len(name), len(attributes), len(record.value))
    return b"".join((head, name, attributes, record.value))


def _attributes(attributes: Mapping[str, str]) -> bytes:
    return json.dumps(attributes, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def parse_block_head(data: bytes | memoryview, at: int) -> BlockHead | None:
    """The head of the block at this place; None if there is none, or not all of it."""
    if len(data) - at < BLOCK_HEAD.size:
        return None
    magic, first, count, body_bytes, checksum = BLOCK_HEAD.unpack_from(data, at)
    return BlockHead(first, count, body_bytes, checksum) if magic == BLOCK_MAGIC else None


def is_whole(data: bytes | memoryview, at: int, head: BlockHead) -> bool:
    """Whether all of the block is there and its checksum agrees."""
    stop = at + head.block_bytes
    if stop > len(data):
        return False
    view = memoryview(data)
    found = zlib.crc32(view[at + BLOCK_HEAD.size : stop], zlib.crc32(view[at : at + BLOCK_HEAD.size - 4]))
    return found == head.checksum


def decode_block(data: bytes | memoryview, at: int, head: BlockHead) -> Iterator[Record]:
    """The records of a whole block, in order."""
    view = memoryview(data)[at + BLOCK_HEAD.size : at + head.block_bytes]
    place = 0
    known: dict[bytes, Mapping[str, str]] = {b"": {}}
    for _ in range(head.count):
        received_us, id_bytes, attributes_bytes, value_bytes = RECORD_HEAD.unpack_from(view, place)
        name = place + RECORD_HEAD.size
        attributes = name + id_bytes
        value = attributes + attributes_bytes
        place = value + value_bytes
        text = bytes(view[attributes:value])
        if text not in known:
            known[text] = json.loads(text.decode("utf-8", "surrogatepass"))
        yield Record(bytes(view[value:place]), str(view[name:attributes], "utf-8"), received_us, known[text])
