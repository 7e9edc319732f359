"""The values that travel through an epoch: frozen, printable, and JSON on disk.

Words are those of ARCHITECTURE.md: an *attempt* is one try at an epoch by one generation of the driver, a
*slice* is one task's part of an epoch's output to one sink, a *vote* says that a slice is prepared, and a
*decision* is made once per attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from tallystick.errors import TallystickError

Json: TypeAlias = Any
"""A JSON value: what ``json.dumps`` takes and ``json.loads`` gives back equal."""

HASH_MASK = (1 << 64) - 1


class Mode(str, Enum):
    """The delivery mode of a job."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Decision(str, Enum):
    """What was decided about an attempt. Written once, never changed."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"


class Outcome(str, Enum):
    """How one commit ended. *Unknown is never failed, and expired is never dropped.*"""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    RETRY_LATER = "retry later"
    EXPIRED = "expired"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def confirmed(self) -> bool:
        return self in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)

    @property
    def unsettled(self) -> bool:
        """Ask again: the commit may or may not have happened, or cannot happen just now."""
        return self in (Outcome.RETRY_LATER, Outcome.UNKNOWN)


@dataclass(frozen=True, order=True)
class Attempt:
    """One try at an epoch by one run of the driver. Prints and parses as ``EPOCH.GENERATION``."""

    epoch: int
    generation: int

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.generation < 0:
            raise TallystickError(f"an attempt has no negative parts, found {self.epoch}.{self.generation}")

    def __str__(self) -> str:
        return f"{self.epoch:012d}.{self.generation:07d}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """Takes exactly what ``str`` gives: two names for one attempt would be two places for one decision."""
        match = re.fullmatch(r"([0-9]{12,})\.([0-9]{7,})", text)
        attempt = cls(int(match[1]), int(match[2])) if match is not None else None
        if attempt is None or str(attempt) != text:
            raise TallystickError(f"not the name of an attempt: {text!r}, needed EPOCH.GENERATION")
        return attempt


@dataclass(frozen=True)
class Fingerprint:
    """Count and order-independent 64-bit hash sum of some rows. Fingerprints of disjoint rows add up."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.hash + other.hash) & HASH_MASK)

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash:016x}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        if not re.fullmatch(r"(0|[1-9][0-9]*):[0-9a-f]{16}", text):
            raise TallystickError(f"not a fingerprint: {text!r}, needed ROWS:16-HEX-DIGITS")
        rows, digest = text.split(":")
        return cls(int(rows), int(digest, 16))

    @classmethod
    def total(cls, parts: Iterable[Fingerprint]) -> Fingerprint:
        result = cls()
        for part in parts:
            result = result + part
        return result


@dataclass(frozen=True)
class Vote:
    """One slice of one sink is prepared (or was only counted).

    ``committable`` names the pre-committed transaction. It is None for a slice without rows, which opens no
    transaction, and for a slice that was computed to be compared but not written.

    ``refused`` are the rows among them that the target did not take and that went to the dead letters: their hashes, by
    reason. The fingerprint counts them too.
    """

    sink: str
    slice: int
    fingerprint: Fingerprint
    committable: Json = None
    refused: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> tuple[str, int]:
        return (self.sink, self.slice)

    @property
    def refused_rows(self) -> int:
        return sum(len(hashes) for hashes in self.refused.values())

    def to_json(self) -> Json:
        value: dict[str, Json] = {
            "sink": self.sink,
            "slice": self.slice,
            "fingerprint": str(self.fingerprint),
        }
        if self.committable is not None:
            value["committable"] = self.committable
        if self.refused:
            value["refused"] = {why: [f"{one:016x}" for one in hashes] for why, hashes in self.refused.items()}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Vote:
        return cls(
            str(value["sink"]),
            int(value["slice"]),
            Fingerprint.parse(value["fingerprint"]),
            value.get("committable"),
            {why: tuple(int(one, 16) for one in hashes) for why, hashes in value.get("refused", {}).items()},
        )


@dataclass(frozen=True)
class Parts:
    """Some of an epoch's output: whole sinks, however they are sliced, and single slices of others."""

    sinks: frozenset[str] = frozenset()
    slices: frozenset[tuple[str, int]] = frozenset()

    def __contains__(self, vote: Vote) -> bool:
        return vote.sink in self.sinks or vote.key in self.slices

    def to_json(self) -> Json:
        return {"sinks": sorted(self.sinks), "slices": [list(key) for key in sorted(self.slices)]}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Parts:
        return cls(frozenset(value["sinks"]), frozenset((str(s), int(n)) for s, n in value["slices"]))


@dataclass(frozen=True)
class SourceOffsets:
    """What an epoch read: one JSON offset per source, as Spark logged it, and a hash over all of them.

    ``rules`` are the broadcast states that it saw, by name, each with the hash of all of its rules.
    """

    digest: str = ""
    offsets: tuple[Json, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> Json:
        value: dict[str, Json] = {"digest": self.digest, "offsets": list(self.offsets)}
        return {**value, "rules": dict(self.rules)} if self.rules else value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> SourceOffsets:
        rules = tuple((str(name), str(digest)) for name, digest in value.get("rules", {}).items())
        return cls(value["digest"], tuple(value["offsets"]), rules)


@dataclass(frozen=True)
class Record:
    """One attempt's decision, as the journal keeps it.

    ``replaces`` is set if the votes replace expired parts of earlier attempts at the same epoch; whatever it does
    not name stays with those earlier attempts. ``stamp_us`` is above every stamp of its rows (`sinks/stamps.py`).
    ``facts`` are for people (times, durations); the protocol never looks at them.
    """

    attempt: Attempt
    decision: Decision
    mode: Mode = Mode.EXACTLY_ONCE
    votes: tuple[Vote, ...] = ()
    replaces: Parts | None = None
    reason: str = ""
    read: SourceOffsets = SourceOffsets()
    facts: Mapping[str, Json] = field(default_factory=dict, compare=False)
    stamp_us: int = 0

    def to_json(self) -> Json:
        value: dict[str, Json] = {
            "attempt": str(self.attempt),
            "decision": self.decision.value,
            "mode": self.mode.value,
        }
        if self.votes:
            value["votes"] = [vote.to_json() for vote in self.votes]
        if self.replaces is not None:
            value["replaces"] = self.replaces.to_json()
        if self.reason:
            value["reason"] = self.reason
        if self.read.digest:
            value["read"] = self.read.to_json()
        if self.stamp_us:
            value["stamp_us"] = self.stamp_us
        if self.facts:
            value["facts"] = dict(self.facts)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Record:
        read = value.get("read")
        return cls(
            attempt=Attempt.parse(value["attempt"]),
            decision=Decision(value["decision"]),
            mode=Mode(value["mode"]),
            votes=tuple(Vote.from_json(vote) for vote in value.get("votes", ())),
            replaces=Parts.from_json(value["replaces"]) if "replaces" in value else None,
            reason=str(value.get("reason", "")),
            read=SourceOffsets.from_json(read) if read else SourceOffsets(),
            stamp_us=int(value.get("stamp_us", 0)),
            facts=dict(value.get("facts", {})),
        )


class Resolution(str, Enum):
    """What a person chose for an epoch whose expired slices cannot be rewritten as they were."""

    REWRITE = "rewrite"
    """Write the rows of the replay, though they differ from those that were decided on."""
    ABANDON = "abandon"
    """Accept that the expired slices are lost."""


def refused_by_sink(votes: Iterable[Vote]) -> dict[str, int]:
    """How many rows of an epoch each sink's target refused; sinks without any are not in it."""
    counts: dict[str, int] = {}
    for vote in votes:
        if vote.refused:
            counts[vote.sink] = counts.get(vote.sink, 0) + vote.refused_rows
    return counts


def totals_by_sink(votes: Sequence[Vote]) -> dict[str, Fingerprint]:
    """The fingerprint of an epoch's whole output, sink by sink; independent of how it was sliced."""
    totals: dict[str, Fingerprint] = {}
    for vote in votes:
        totals[vote.sink] = totals.get(vote.sink, Fingerprint()) + vote.fingerprint
    return totals
