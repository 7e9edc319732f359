"""The mark of a record: which row of which epoch it is. By it a reader drops what was sent twice.

A Kinesis record has data, a partition key, and nothing else. The data stays the user's own, so that every consumer
can read it; the mark is appended to the partition key, and an explicit hash of the user's key alone chooses the shard::

    PartitionKey      KEY~ts1:JOB:EPOCH:GENERATION:SLICE:ORDINAL
    ExplicitHashKey   MD5 of KEY as a number: the shard that KEY itself would have gone to

Which records are repeats, and why it is right (`Repeats`, one for each shard, fed in the order of the shard):

1.  *Epochs come one after the other.* The sink begins epoch N+1 when every record of N is confirmed. So once a record
    of N+1 is seen, whatever comes of N or earlier is a repeat: of a driver taken for dead, or of a lost answer.
2.  *Within an epoch* a record with the same slice and ordinal is a repeat if its data is the same. If the data differs,
    an epoch was done again and its rows came out in another order: then the record is kept. A job that is not
    deterministic can repeat rows, and never loses one.
3.  *A reader remembers one epoch*: the slice, ordinal and checksum of each record of the newest one.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass, field

from tallystick.errors import TallystickError
from tallystick.records import Json

KEY_LETTERS_MAX = 180
"""Kinesis takes 256 letters, of which a mark needs up to 76."""
_FORM = re.compile(r"(?P<key>.*)~ts1:(?P<job>[A-Za-z0-9_-]{1,24}):(\d+):(\d+):(\d+):(\d+)", re.DOTALL)


@dataclass(frozen=True, order=True)
class Mark:
    """Prints and parses as ``ts1:JOB:EPOCH:GENERATION:SLICE:ORDINAL``."""

    job: str
    epoch: int
    generation: int
    slice: int
    ordinal: int

    def __str__(self) -> str:
        return f"ts1:{self.job}:{self.epoch}:{self.generation}:{self.slice}:{self.ordinal}"

    def partition_key(self, key: str) -> str:
        """The partition key of a record with this key. An error if the key is too long for both."""
        if len(key) > KEY_LETTERS_MAX:
            raise TallystickError(f"a key has at most {KEY_LETTERS_MAX} letters, found {len(key)}")
        return f"{key}~{self}"


def parse(partition_key: str) -> tuple[str, Mark | None]:
    """The user's key, and the mark; None if another program wrote the record."""
    match = _FORM.fullmatch(partition_key)
    if match is None:
        return partition_key, None
    epoch, generation, slice_, ordinal = map(int, match.groups()[2:])
    return match["key"], Mark(match["job"], epoch, generation, slice_, ordinal)


def hash_key(text: str) -> str:
    """The ``ExplicitHashKey`` that sends a record where Kinesis would send one with this partition key."""
    return str(int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest(), "big"))


@dataclass
class _Newest:
    epoch: int = -1
    seen: dict[tuple[int, int], int] = field(default_factory=dict)


class Repeats:
    """What one shard has brought so far, as far as it matters for what comes next (essay 1 to 3)."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Newest] = {}

    def drop(self, mark: Mark | None, data: bytes) -> bool:
        """Whether this record, the next of its shard, was there before. Records without a mark never were."""
        if mark is None:
            return False
        newest = self._jobs.setdefault(mark.job, _Newest())
        if mark.epoch < newest.epoch:
            return True
        if mark.epoch > newest.epoch:
            newest.epoch, newest.seen = mark.epoch, {}
        place, checksum = (mark.slice, mark.ordinal), zlib.crc32(data)
        if newest.seen.get(place) == checksum:
            return True
        newest.seen[place] = checksum
        return False

    def to_json(self) -> Json:
        """For a source's offset: with it, reading goes on as if it had never stopped."""
        return {
            job: {"epoch": newest.epoch, "seen": [[*place, crc] for place, crc in sorted(newest.seen.items())]}
            for job, newest in self._jobs.items()
        }

    @classmethod
    def from_json(cls, value: Json) -> Repeats:
        made = cls()
        for job, newest in value.items():
            seen = {(slice_, ordinal): crc for slice_, ordinal, crc in newest["seen"]}
            made._jobs[job] = _Newest(newest["epoch"], seen)
        return made
