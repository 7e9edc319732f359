"""What the protocol asks of the world. One frozen value per request; the answer's type is in its docstring.

The protocol itself (`epoch.py`) is a generator that yields these and is sent the answers. It imports no Spark,
no client library and no clock, so that the same code runs on a cluster and under exhaustive exploration.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tallystick.records import Attempt, Json, Parts, Record, Resolution, Vote


@dataclass(frozen=True)
class Recall:
    """Read what the journal knows of an epoch. Answer: `Recalled`."""

    attempt: Attempt


@dataclass(frozen=True)
class Recalled:
    """The decisions about an epoch, by generation, and the earlier generations that may still be alive.

    A generation with an ABORT at or after its first epoch is dead: its driver comes to every epoch from there on,
    and where it meets its own ABORT it stops for good. An ABORT below the first epoch, put by a successor that is
    late itself, is never met and proves nothing; so a claim names the epoch that its driver starts at. All other
    earlier generations are *rivals*, because nobody can tell a dead process from a paused one.
    """

    records: tuple[Record, ...] = ()
    rivals: tuple[int, ...] = ()
    resolution: Resolution | None = None


@dataclass(frozen=True)
class Put:
    """Write a decision unless the attempt has one. Answer: the `Record` that stands, ours or the earlier one."""

    record: Record


EVERYTHING = None
"""`Prepare.write`: every slice of every sink."""
NOTHING = Parts()
"""`Prepare.write`: no slice; only compute the fingerprints."""


@dataclass(frozen=True)
class Prepare:
    """Compute the epoch and stage what ``write`` names (`EVERYTHING`, `NOTHING`, or some parts).

    Answer: a `Vote` for each slice of each sink, without committable where nothing was staged.
    Raises `PrepareError` if a slice could not be staged. What was staged until then stays behind, for
    `AbortOrphans`.

    ``decided`` are the votes in force, if the epoch was decided before: what was refused then is refused again, and
    nothing else is (`docs/decisions/0013-dead-letters.md`).
    """

    attempt: Attempt
    write: Parts | None
    decided: tuple[Vote, ...] = ()


@dataclass(frozen=True)
class Commit:
    """Commit these votes once, in this order. Answer: a tuple of `Outcome`, one per vote."""

    votes: tuple[Vote, ...]
    recovering: bool = False


@dataclass(frozen=True)
class Wait:
    """Wait before asking for unsettled commits again. Raises `CommitPendingError` when patience is out."""

    tries: int
    unsettled: tuple[Vote, ...]


@dataclass(frozen=True)
class AbortOrphans:
    """Roll back the open transactions of this epoch or earlier ones, of this generation or earlier ones.

    Those that `keep` names stay. Asked only when every earlier generation has a decision at this epoch; newer
    generations are never touched, for the one that asks may be the zombie. Answer: how many were rolled back.
    """

    attempt: Attempt
    keep: tuple[Vote, ...] = ()


@dataclass(frozen=True)
class Settled:
    """Every epoch up to this one is finished for good: sinks may forget what they hold for them. No answer."""

    epoch: int


@dataclass(frozen=True)
class Note:
    """Keep a finding about an attempt for people and for the audit. No answer."""

    attempt: Attempt
    kind: str
    details: Mapping[str, Json]


Command: TypeAlias = Recall | Put | Prepare | Commit | Wait | AbortOrphans | Settled | Note
Steps: TypeAlias = Generator[Command, Any, "Finished"]


@dataclass(frozen=True)
class Finished:
    """How an epoch ended well. ``how`` is one of written, verified, rewritten, skipped."""

    how: str
    votes: tuple[Vote, ...]
