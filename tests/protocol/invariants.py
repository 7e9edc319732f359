"""What must hold in every reachable state, by name. Each is checked on the step that could break it.

twice      a reader sees the same part of an epoch two times
undecided  something was published of an attempt without COMMIT, or that its votes do not name
changed    a decision was changed or taken back
undone     a sweep rolled back a transaction whose COMMIT stands
lost       an epoch is in Spark's commit log, so it never runs again, but readers do not see all of it
stuck      with all faults over, a fresh driver cannot finish an epoch
open       a fresh driver has passed every epoch, and a transaction that readers hang behind is still open
"""

from __future__ import annotations

from collections.abc import Iterator

from world import Rules, World

from tallystick.records import Decision, Mode

ALL = frozenset({"twice", "undecided", "changed", "undone", "lost", "stuck", "open"})
PROMISES = {
    Mode.EXACTLY_ONCE: ALL,
    Mode.AT_LEAST_ONCE: ALL - {"twice", "undone"},
    Mode.AT_MOST_ONCE: ALL - {"lost", "undone"},
}
"""The weaker modes sweep without regard to earlier decisions, so ``undone`` is no promise of theirs."""


class ViolationError(AssertionError):
    """An invariant does not hold. The text ends with every step that led there."""

    def __init__(self, invariant: str, found: str, trace: list[str]) -> None:
        steps = "\n".join(f"  {number:3}. {step}" for number, step in enumerate(trace, 1))
        super().__init__(f"{invariant}: {found}\n{steps}")
        self.invariant = invariant
        self.trace = trace


def broken(rules: Rules, before: World, after: World, swept: bool) -> Iterator[tuple[str, str]]:
    """The invariants that a step from one world to the next breaks, each with what was found."""
    if after.published is not before.published:
        yield from _published(after)
    if after.journal is not before.journal and not before.journal <= after.journal:
        yield "changed", f"{sorted(map(str, before.journal - after.journal))} is gone from the journal"
    if swept:
        yield from _swept(before, after)
    if after.commits != before.commits:
        for epoch in range(after.commits):
            if missing := after.missing(epoch, rules.keys):
                yield "lost", f"commits/{epoch} is written, but readers do not see {missing}"


def _published(world: World) -> Iterator[tuple[str, str]]:
    seen = set()
    for transaction in world.published:
        part = (transaction.epoch, transaction.key)
        if part in seen:
            yield "twice", f"readers see {transaction.key} of epoch {transaction.epoch} two times"
        seen.add(part)
        record = world.decided(transaction.epoch, transaction.generation)
        if record is None or record.decision is not Decision.COMMIT:
            yield "undecided", f"{transaction.name} is published, its attempt has {record and record.decision}"
        elif record.votes and transaction.name not in {vote.committable for vote in record.votes}:
            yield "undecided", f"{transaction.name} is published, but no vote names it"


def _swept(before: World, after: World) -> Iterator[tuple[str, str]]:
    for transaction in before.open - after.open:
        record = before.decided(transaction.epoch, transaction.generation)
        if record is not None and transaction.name in {vote.committable for vote in record.votes}:
            yield "undone", f"{transaction.name} was rolled back although its COMMIT stands"
