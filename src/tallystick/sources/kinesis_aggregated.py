"""Records that Kinesis producers packed into one: the aggregation format of the Kinesis Producer Library. Pure.

::

    magic F3 89 9A C2 · a protobuf message · MD5 of that message

    message  1 partition keys (texts)   2 explicit hash keys (texts)   3 records
    record   1 index of its partition key   2 index of its explicit hash key   3 data

A record belongs to the shard whose range holds its hash: the explicit one, or the MD5 of its partition key. After a
split a packed record may hold some that belong to another shard, and those were sent again by their producer. As with
Amazon's own consumer library they are left out here, so that they come once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Unpacked:
    """``sub`` numbers the records of one packed record; 0 for a record that was not packed."""

    key: str
    data: bytes
    sub: int


def unpack(key: str, data: bytes, hashes: range) -> list[Unpacked]:
    """The records in a record; itself if nothing is packed in it. ``hashes`` is the range of its shard."""
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if not data.startswith(MAGIC) or hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return [Unpacked(key, data, 0)]
    keys: list[str] = []
    explicit: list[str] = []
    packed: list[tuple[int, int | None, bytes]] = []
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            keys.append(value.decode())
        elif field == 2 and isinstance(value, bytes):
            explicit.append(value.decode())
        elif field == 3 and isinstance(value, bytes):
            packed.append(_record(value))
    return [
        Unpacked(keys[name], content, sub)
        for sub, (name, chosen, content) in enumerate(packed)
        if hash_of(keys[name], explicit[chosen] if chosen is not None else None) in hashes
    ]


def hash_of(key: str, explicit: str | None) -> int:
    """Where on the ring of hashes a record belongs."""
    if explicit is not None:
        return int(explicit)
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def _record(message: bytes) -> tuple[int, int | None, bytes]:
    found = dict(_fields(message))
    key, chosen, data = found.get(1, 0), found.get(2), found.get(3, b"")
    if not isinstance(key, int) or not isinstance(chosen, int | None) or not isinstance(data, bytes):
        raise ValueError("a packed record has a field of another type")
    return key, chosen, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a protobuf message. Raises `ValueError` if it is none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            number, at = _varint(message, at)
            yield field, number
        elif wire == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError(f"field {field} has {length} bytes, {len(message) - at} are there")
            yield field, message[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"field {field} has the unknown type {wire}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has no end")
