"""Protocols and worlds that are wrong on purpose. The exploration must convict each of them (`CONVICTIONS`).

Most are the real protocol with one lie between it and the world: `_relayed` swallows commands or changes answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from programs import Protocol
from steps import Bounds, Budget
from world import Entry, Rules, Transaction, World, entry

from tallystick.errors import CommitPendingError
from tallystick.protocol import (
    NOTHING,
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Prepare,
    Put,
    Recall,
    Steps,
    exactly_once,
    in_force,
)
from tallystick.protocol.epoch import _commit, _decide, _prepare, _recover, _settle_rivals, _verify
from tallystick.records import Attempt, Decision, Outcome, Parts, Record, Vote


def decides_early(me: Attempt) -> Steps:
    """(a) COMMIT is put when the first slice has voted; the others are prepared after it."""
    decided = yield from _settled(me)
    if decided is not None:
        missing = yield from _recover(decided)
        return (yield from _verify(me, decided, missing))
    counted: tuple[Vote, ...] = yield Prepare(me, NOTHING)
    first, others = Parts(slices=frozenset({counted[0].key})), Parts(slices=frozenset(v.key for v in counted[1:]))
    early: tuple[Vote, ...] = yield Prepare(me, first)
    yield from _decide(me, early[:1])
    rest: tuple[Vote, ...] = yield Prepare(me, others)
    yield from _commit(early[:1] + rest[1:])
    return Finished("written", early[:1] + rest[1:])


def commits_before_deciding(me: Attempt) -> Steps:
    """(b) Published first, decided after."""
    decided = yield from _settled(me)
    if decided is not None:
        missing = yield from _recover(decided)
        return (yield from _verify(me, decided, missing))
    votes = yield from _prepare(me, None)
    yield from _commit(votes)
    yield from _decide(me, votes)
    return Finished("written", votes)


def refuses_to_recover(me: Attempt) -> Steps:
    """An epoch that somebody else decided is left to somebody else."""
    decided = yield from _settled(me)
    if decided is not None:
        raise CommitPendingError("decided by another driver")
    votes = yield from _prepare(me, None)
    yield from _decide(me, votes)
    yield from _commit(votes)
    return Finished("written", votes)


def _settled(me: Attempt) -> Any:
    past = yield from _settle_rivals(me)
    decided = in_force(past.records)
    yield AbortOrphans(me, keep=decided or ())
    return decided


def _relayed(
    change: Callable[[Command, Any], Any] = lambda command, answer: answer,
    swallow: Callable[[Command], bool] = lambda command: False,
) -> Protocol:
    """The real protocol, behind a relay. A swallowed Put answers with its own record."""

    def run(me: Attempt) -> Steps:
        steps = exactly_once(me)
        answer: Any = None
        try:
            while True:
                command = steps.send(answer)
                if swallow(command):
                    answer = command.record if isinstance(command, Put) else None
                else:
                    answer = change(command, (yield command))
        except StopIteration as end:
            finished: Finished = end.value
            return finished

    return run


def _outcome(lie: dict[Outcome, Outcome]) -> Callable[[Command, Any], Any]:
    def change(command: Command, answer: Any) -> Any:
        return tuple(lie.get(outcome, outcome) for outcome in answer) if isinstance(command, Commit) else answer

    return change


def _no_rivals(command: Command, answer: Any) -> Any:
    return replace(answer, rivals=()) if isinstance(command, Recall) else answer


def _own_way(command: Command, answer: Any) -> Any:
    return command.record if isinstance(command, Put) and command.record.decision is Decision.COMMIT else answer


class NamesWithoutAttempt(Rules):
    """(d) As a transactional id does: beginning under a name aborts what is open under it; commit goes by name."""

    def name(self, attempt: Attempt, key: tuple[str, int], task: int) -> str:
        return f"{key[0]}{key[1]}"

    def begin(self, world: World, transaction: Transaction) -> World:
        others = frozenset(held for held in world.open if held.name != transaction.name)
        return world._replace(open=others | {transaction})


class NamesWithoutGeneration(NamesWithoutAttempt):
    """(d) The same, with the epoch in the name."""

    def name(self, attempt: Attempt, key: tuple[str, int], task: int) -> str:
        return f"{attempt.epoch}/{key[0]}{key[1]}"


class SweepsNewerToo(Rules):
    """(e) A sweep takes whatever is open, of any generation."""

    def orphans(self, world: World, command: AbortOrphans) -> frozenset[Transaction]:
        kept = {vote.committable for vote in command.keep}
        return frozenset(held for held in world.open if held.name not in kept)


class Overwrites(Rules):
    """A journal without put-if-absent: the last writer wins."""

    def put(self, world: World, record: Record) -> tuple[Entry, World]:
        others = frozenset(held for held in world.journal if held.record.attempt != record.attempt)
        return entry(record), world._replace(journal=others | {entry(record)})


class AnyAbortIsDeath(Rules):
    """An ABORT at any epoch counts as the end of its generation, also below the first epoch of that one."""

    def deadly(self, world: World, aborted: Attempt) -> bool:
        return True


@dataclass(frozen=True)
class Conviction:
    """What is wrong, and the invariant it must be convicted of within these bounds."""

    invariant: str
    protocol: Protocol = exactly_once
    rules: Rules = Rules()  # noqa: RUF009 - frozen
    bounds: Bounds = Bounds()  # noqa: RUF009 - frozen


_EXPIRY = Bounds(budget=Budget(expiries=1))
_LATE = Bounds(budget=Budget(late=1))
_VERIFIED_UNDECIDED = _relayed(swallow=lambda command: isinstance(command, Put) and command.record.replaces == NOTHING)

CONVICTIONS = {
    "a: decides before all votes are in": Conviction("lost", decides_early),
    "b: commits before the decision is durable": Conviction("undecided", commits_before_deciding),
    "c: takes over without fencing": Conviction("twice", _relayed(_no_rivals)),
    "c: a fenced driver goes on": Conviction("undecided", _relayed(_own_way)),
    "d: names without attempt, published undecided": Conviction("undecided", rules=NamesWithoutAttempt()),
    "d: names without generation, late task": Conviction("undecided", rules=NamesWithoutGeneration(), bounds=_LATE),
    "e: sweeps newer generations": Conviction("undone", rules=SweepsNewerToo()),
    "f: unknown is taken for expired": Conviction(
        "twice", _relayed(_outcome({Outcome.UNKNOWN: Outcome.EXPIRED})), bounds=Bounds(budget=Budget(unknowns=1))
    ),
    "g: expired is dropped": Conviction(
        "lost", _relayed(_outcome({Outcome.EXPIRED: Outcome.COMMITTED})), bounds=_EXPIRY
    ),
    "h: verifies without a decision": Conviction("twice", _VERIFIED_UNDECIDED),
    "i: any ABORT is taken for death": Conviction("twice", rules=AnyAbortIsDeath(), bounds=Bounds(slow_starts=True)),
    "j: the journal overwrites": Conviction("changed", rules=Overwrites()),
    "k: never sweeps": Conviction("open", _relayed(swallow=lambda command: isinstance(command, AbortOrphans))),
    "l: refuses to recover": Conviction("stuck", refuses_to_recover),
}
