"""The keys that hold a job's slices in Redis, beside its guard."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

from tallystick.records import Attempt


@dataclass(frozen=True)
class Keys:
    """``base`` is ``PREFIX:JOB:TARGET``, where TARGET is a hash; ``name`` is that of one slice."""

    base: str
    name: str

    @classmethod
    def of(cls, prefix: str, job_id: str, target: str, name: str) -> Keys:
        digest = hashlib.sha256(target.encode()).hexdigest()[:8]
        return cls(f"{prefix}:{quote(job_id, safe='')}:{digest}", name)

    @property
    def attempt(self) -> Attempt:
        return Attempt.parse(self.name.split("-")[0])

    @property
    def number(self) -> int:
        """Of the slice."""
        return int(self.name.split("-")[1])

    @property
    def guard(self) -> str:
        """The newest attempt that began."""
        return self.base

    @property
    def open(self) -> str:
        """Every slice that is held, and when it began."""
        return f"{self.base}:open"

    @property
    def slice(self) -> str:
        return f"{self.base}:{self.name}"
