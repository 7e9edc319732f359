"""The name of one transaction: the server's name for it when prepared, its staging table, and its session."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tallystick.errors import SinkError
from tallystick.records import Attempt
from tallystick.sinks.base import SliceContext

BYTES_MAX = 63
"""What PostgreSQL keeps of an identifier, and of application_name."""
_NAME = re.compile(r"(?P<prefix>tallystick/[\w-]+/[0-9a-f]+/)(?P<epoch>\d+)\.(?P<gen>\d+)-(?P<slice>\d+)-(?P<task>\d+)")


@dataclass(frozen=True)
class Name:
    """Prints and parses as ``tallystick/JOB/TABLE/EPOCH.GENERATION-SLICE-TASK``; TABLE is a hash."""

    prefix: str
    attempt: Attempt
    slice: int
    task: int

    def __str__(self) -> str:
        return f"{self.prefix}{self.attempt.epoch}.{self.attempt.generation}-{self.slice}-{self.task}"

    @classmethod
    def of(cls, prefix: str, context: SliceContext) -> Name:
        made = cls(prefix, context.attempt, context.slice, context.task)
        if len(str(made)) > BYTES_MAX:
            raise SinkError(f"postgresql: {made} is longer than {BYTES_MAX} characters, so the server would cut it")
        return made

    @classmethod
    def parse(cls, text: str) -> Name:
        match = _NAME.fullmatch(text)
        name = None
        if match is not None:
            attempt = Attempt(int(match["epoch"]), int(match["gen"]))
            name = cls(match["prefix"], attempt, int(match["slice"]), int(match["task"]))
        if name is None or str(name) != text:
            raise SinkError(f"postgresql: {text!r} is not the name of a transaction of tallystick")
        return name


def prefix_of(job_id: str, table: str) -> str:
    """How all names of a job's transactions for one table start."""
    job = job_id if re.fullmatch(r"[\w-]{1,12}", job_id, re.ASCII) else hashlib.sha256(job_id.encode()).hexdigest()[:12]
    return f"tallystick/{job}/{hashlib.sha256(table.encode()).hexdigest()[:6]}/"
