"""The world around the protocol, as a small value: journal, Spark's commit log, servers, and what readers see.

A `World` is immutable and hashable, so that the explorer can tell states apart; `Rules` says how journal and servers
answer. Three things are folded together because nobody can tell them apart through the contract:

- *begun* and *prepared*: a transaction that nobody voted for is never committed, only swept;
- *aborted* and *expired*: a server answers ``expired`` for both, and names are never used again, so both are gone;
- a slow task of a dead driver and a speculative duplicate: both leave an open transaction that nobody voted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tallystick.protocol import AbortOrphans, Prepare, Recalled
from tallystick.records import Attempt, Decision, Fingerprint, Outcome, Record, Resolution, Vote


class Entry:
    """A journal record that is equal to itself only: `entry` makes one per record, so comparing is cheap."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record

    def __repr__(self) -> str:
        votes = ", ".join(str(vote.committable) for vote in self.record.votes if vote.committable is not None)
        kind = " of a rewrite" if self.record.replaces else ""
        attempt = self.record.attempt
        return f"{self.record.decision.value}{kind} of {attempt.epoch}.{attempt.generation} [{votes}]"


_entries: dict[Record, Entry] = {}


def entry(record: Record) -> Entry:
    return _entries.setdefault(record, Entry(record))


class Transaction(NamedTuple):
    """What one server holds: ``name`` is what a vote carries, the rest is what it really contains."""

    epoch: int
    key: tuple[str, int]
    generation: int
    name: str


class World(NamedTuple):
    """Everything that outlives a driver."""

    claims: tuple[int, ...] = ()
    """Generation 1, 2, … was claimed by a driver that starts at this epoch."""
    journal: frozenset[Entry] = frozenset()
    commits: int = 0
    """Spark's commit log holds every epoch below this one."""
    open: frozenset[Transaction] = frozenset()
    published: tuple[Transaction, ...] = ()
    settled: int = -1
    """Sinks have forgotten what they held up to this epoch."""
    staging: frozenset[tuple[int, int]] = frozenset()
    """Attempts ``(epoch, generation)`` that started tasks, so that late ones may appear."""

    def decided(self, epoch: int, generation: int) -> Record | None:
        for held in self.journal:
            if held.record.attempt.epoch == epoch and held.record.attempt.generation == generation:
                return held.record
        return None

    def missing(self, epoch: int, keys: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
        """The parts of an epoch that no reader can see."""
        seen = {transaction.key for transaction in self.published if transaction.epoch == epoch}
        return [key for key in keys if key not in seen]


@dataclass(frozen=True)
class Rules:
    """How journal and servers behave when they keep their contracts. Broken ones override single methods."""

    keys: tuple[tuple[str, int], ...] = (("a", 0), ("a", 1))
    forgetful: bool = False
    """Sinks forget what is settled (they may), and then answer ``unknown`` for it."""
    resolution: Resolution | None = None

    def name(self, attempt: Attempt, key: tuple[str, int], task: int) -> str:
        """Essay 4: the name of a transaction holds its attempt and Spark's try of the task."""
        return f"{attempt.epoch}.{attempt.generation}/{key[0]}{key[1]}#{task}"

    def transaction(self, attempt: Attempt, key: tuple[str, int], task: int = 0) -> Transaction:
        return Transaction(attempt.epoch, key, attempt.generation, self.name(attempt, key, task))

    def to_stage(self, command: Prepare) -> tuple[Transaction, ...]:
        return tuple(
            self.transaction(command.attempt, vote.key) for vote in self.votes(command) if vote.committable is not None
        )

    def votes(self, command: Prepare) -> tuple[Vote, ...]:
        """The job is deterministic: an epoch's slices have the same rows in every attempt."""
        counted = [Vote(*key, Fingerprint(1, 1 + command.attempt.epoch)) for key in self.keys]
        return tuple(
            Vote(vote.sink, vote.slice, vote.fingerprint, self.name(command.attempt, vote.key, 0))
            if command.write is None or vote in command.write
            else vote
            for vote in counted
        )

    def begin(self, world: World, transaction: Transaction) -> World:
        """A task opens, writes and pre-commits."""
        return world._replace(open=world.open | {transaction})

    def commit(self, world: World, vote: Vote) -> tuple[Outcome, World]:
        """Atomic on its server, and idempotent by name."""
        for transaction in world.open:
            if transaction.name == vote.committable:
                published = tuple(sorted((*world.published, transaction)))
                return Outcome.COMMITTED, world._replace(open=world.open - {transaction}, published=published)
        for transaction in world.published:
            if transaction.name == vote.committable:
                forgotten = self.forgetful and transaction.epoch <= world.settled
                return Outcome.UNKNOWN if forgotten else Outcome.ALREADY_COMMITTED, world
        return Outcome.EXPIRED, world

    def put(self, world: World, record: Record) -> tuple[Entry, World]:
        """Put-if-absent; the answer is what stands."""
        standing = world.decided(record.attempt.epoch, record.attempt.generation)
        if standing is not None:
            return entry(standing), world
        mine = entry(record)
        return mine, world._replace(journal=world.journal | {mine})

    def orphans(self, world: World, command: AbortOrphans) -> frozenset[Transaction]:
        """What a sweep rolls back."""
        kept = {vote.committable for vote in command.keep}
        return frozenset(
            transaction
            for transaction in world.open
            if transaction.epoch <= command.attempt.epoch
            and transaction.generation <= command.attempt.generation
            and transaction.name not in kept
        )

    def recall(self, world: World, me: Attempt) -> Recalled:
        """All decisions about the epoch, and the earlier generations that may be alive."""
        records = sorted(
            (held.record for held in world.journal if held.record.attempt.epoch == me.epoch),
            key=lambda record: record.attempt.generation,
        )
        dead = {
            held.record.attempt.generation
            for held in world.journal
            if held.record.decision is Decision.ABORT and self.deadly(world, held.record.attempt)
        }
        rivals = tuple(generation for generation in range(1, me.generation) if generation not in dead)
        return Recalled(tuple(records), rivals, self.resolution)

    def deadly(self, world: World, aborted: Attempt) -> bool:
        """Essay 3: a driver meets its ABORT only at an epoch that it comes to, not below its first one."""
        return aborted.epoch >= world.claims[aborted.generation - 1]
