"""Which partition a record goes to: where Java's clients, and so Spark's own sink, would put it.

A record with a key goes by the key (murmur2), so that all records of one key are in one partition, in order. Records
without one stay together, up to a batch, in a partition drawn at random: few large batches instead of many small ones.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)


def by_key(keys: pa.Array, partitions: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A partition for every key of a binary array; what it says for null is not meant to be used."""
    places: np.ndarray[Any, np.dtype[np.int32]] = ((murmur2(keys) & _POSITIVE) % np.uint32(partitions)).astype(np.int32)
    return places


@functools.lru_cache(maxsize=1024)
def place_of(key: bytes, partitions: int) -> int:
    """The partition of one key."""
    return int(by_key(pa.array([key], pa.binary()), partitions)[0])


def murmur2(keys: pa.Array) -> Hashes:
    """Java's ``Utils.murmur2`` of every key, four bytes of all keys at a time."""
    _, offsets_buffer, data_buffer = keys.buffers()
    ends = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None and data_buffer.size else np.zeros(1, "u1")
    hashes: Hashes = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for word in range(int(whole.max(initial=0))):
        has = whole > word
        at = (starts if has.all() else starts[has]) + 4 * word
        mixed = _mixed(_little_endian(data, at))
        if has.all():
            hashes = (hashes * _M) ^ mixed
        else:
            hashes[has] = (hashes[has] * _M) ^ mixed
    return _finished(_with_rest(hashes, data, starts + 4 * whole, lengths % 4))


def _little_endian(data: Any, at: Any) -> Hashes:
    word: Hashes = data[at].astype(np.uint32)
    for place in (1, 2, 3):
        word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word


def _mixed(word: Hashes) -> Hashes:
    mixed: Hashes = word * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def _with_rest(hashes: Hashes, data: Any, at: Any, rest: Any) -> Hashes:
    """The last one to three bytes."""
    for place in (2, 1, 0):
        has = rest > place
        if has.any():
            hashes[has] ^= data[at[has] + place].astype(np.uint32) << np.uint32(8 * place)
    has = rest > 0
    hashes[has] = hashes[has] * _M
    return hashes


def _finished(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
