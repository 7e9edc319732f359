"""Run a command in this process, and make checkpoints as a job would leave them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.cli import main
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.records import Attempt, Decision, Fingerprint, Json, Mode, Parts, Record, Vote


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        return json.loads(self.out)


@dataclass(frozen=True)
class Tally:
    """``tally("audit", path)`` is what a user types; the answer is what the user gets."""

    captured: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Ran:
        self.captured.readouterr()
        with pytest.raises(SystemExit) as ending:
            main([str(argument) for argument in arguments])
        out, err = self.captured.readouterr()
        code = ending.value.code
        return Ran(code if isinstance(code, int) else 0, out, err)


def new_checkpoint(path: Path, job: str = "pv") -> Journal:
    """A checkpoint that a driver has claimed, with no epoch yet."""
    for folder in ("offsets", "commits"):
        (path / folder).mkdir(parents=True)
    journal = Journal(PosixStore(path / "tallystick"))
    journal.identify(job)
    journal.claim_generation({"pid": 1}, first_epoch=0)
    return journal


def finish(path: Path, *epochs: int) -> None:
    """What Spark leaves behind when epochs are over."""
    for epoch in epochs:
        (path / "offsets" / str(epoch)).write_text("v1\n{}\n{}")
        (path / "commits" / str(epoch)).write_text("v1\n{}")
        (path / "commits" / f".{epoch}.crc").write_bytes(b"crc")


def vote(rows: int, sink: str = "files", slice_: int = 0, hash_: int = 7) -> Vote:
    name = {"dir": f"job/attempt/{sink}-{slice_}-{rows}"}
    return Vote(sink, slice_, Fingerprint(rows, hash_), name if rows else None)


def commit(
    epoch: int, generation: int, *votes: Vote, replaces: Parts | None = None, mode: Mode = Mode.EXACTLY_ONCE
) -> Record:
    facts = {"at": 1_700_000_000.0, "until_decision_s": 0.25}
    return Record(Attempt(epoch, generation), Decision.COMMIT, mode, votes, replaces, facts=facts)


def abort(epoch: int, generation: int, reason: str = "fenced by generation 2") -> Record:
    return Record(Attempt(epoch, generation), Decision.ABORT, reason=reason)
