"""The token that a commit leaves in the table: Delta's own application transaction, one for each slice.

``txn`` actions are kept by Delta for as long as the table lives, whatever becomes of the files. Each slice of a job's
output has application ids of its own, so that the slices of one epoch can be committed together or, where one had to
be written again, one by one. One version grows with the epoch and ends in a hash of what the epoch read::

    tallystick/JOB/OUTPUT/SLICE             EPOCH << 24 | HASH OF THE OFFSETS
    tallystick/JOB/OUTPUT/SLICE/generation  GENERATION

A lower epoch: not committed yet. The same epoch and hash: committed before. The same epoch with another hash, or a
later epoch: somebody has rewound the checkpoint, and the table is ahead of it. That is refused; taken for "committed
before" it would lose every row until the job has caught up. The same from a later generation: whoever asks was fenced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tallystick.records import Json
from tallystick.sinks.base import SliceContext

HASH_BITS = 24


class Standing(Enum):
    """How a token compares with what the table has."""

    NEW = "not committed yet"
    SAME = "committed"
    AHEAD = "the table is ahead"


@dataclass(frozen=True)
class Token:
    app_id: str
    version: int
    generation: int

    @classmethod
    def of(cls, context: SliceContext) -> Token:
        digest = hashlib.blake2b(context.read.encode(), digest_size=HASH_BITS // 8).digest()
        version = context.attempt.epoch << HASH_BITS | int.from_bytes(digest, "big")
        app_id = f"tallystick/{context.job_id}/{context.sink}/{context.slice}"
        return cls(app_id, version, context.attempt.generation)

    @classmethod
    def from_json(cls, value: Json) -> Token:
        return cls(str(value[0]), int(value[1]), int(value[2]))

    def to_json(self) -> Json:
        return [self.app_id, self.version, self.generation]

    @property
    def actions(self) -> dict[str, int]:
        """Application ids and versions, as they go into the log."""
        return {self.app_id: self.version, f"{self.app_id}/generation": self.generation}

    @property
    def epoch(self) -> int:
        return self.version >> HASH_BITS

    def against(self, found: Callable[[str], int | None]) -> Standing:
        """``found`` gives the version that the table has for an application id."""
        version, generation = (found(app_id) for app_id in self.actions)
        if version is None or version >> HASH_BITS < self.epoch:
            return Standing.NEW
        ours = version == self.version and (generation or 0) <= self.generation
        return Standing.SAME if ours else Standing.AHEAD
