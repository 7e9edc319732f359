"""End by hand what is open, without starting the job: what its next start would do, and nothing else.

1.  *Decided COMMIT is committed.* That may be repeated by anybody at any time.
2.  *An undecided attempt gets its ABORT first*, by the same put-if-absent that a new driver uses to fence an old one,
    and is rolled back after that. If the put comes second, the attempt was decided after all: see 1.
3.  *A living driver is left alone.* Its lock on the checkpoint says that it lives. Forced, it is fenced as by 2: it
    stops when it next decides, and nothing of it is torn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tallystick.cli.opened import Opened
from tallystick.cli.pending import name_of
from tallystick.errors import CheckpointInUseError
from tallystick.protocol.settle import in_force
from tallystick.records import Attempt, Decision, Json, Outcome, Record, Vote

if TYPE_CHECKING:
    from tallystick.sinks.base import OpenTransaction, TransactionalSink

Sinks = dict[str, "TransactionalSink[Any]"]

REASON = "rolled back by hand"
ROLLED_BACK = "rolled back"
EXPIRED = "expired"
TRIES = 5


@dataclass(frozen=True)
class Ended:
    """What became of one transaction. ``ended`` is committed, rolled back, expired, refused or not confirmed."""

    sink: str
    name: str
    epoch: int
    generation: int
    slice: int | None
    ended: str

    @property
    def over(self) -> bool:
        return self.ended in (Outcome.COMMITTED.value, ROLLED_BACK, EXPIRED)

    def to_json(self) -> Json:
        return asdict(self)


def end_open(opened: Opened, sinks: Sinks, epoch: int | None = None, force: bool = False) -> list[Ended]:
    """End all that is open, or only what belongs to one epoch. `CheckpointInUseError` if a driver lives."""
    alone = opened.journal.store.try_lock()
    if not alone and not force:
        raise CheckpointInUseError(
            f"a living driver holds {opened.location}: it ends its transactions by itself. stop it first, or add "
            "--force to fence it: it then stops at its next epoch, and that epoch is rolled back"
        )
    try:
        held = [
            (name, found)
            for name, sink in sinks.items()
            for found in sink.open_transactions(opened.owner.id)
            if (epoch is None or found.attempt.epoch == epoch) and (alone or found.attempt.generation > 0)
        ]
        _fence(opened, [found.attempt for _, found in held])
        ended = [*_commit_decided(opened, sinks, epoch), *_roll_back(opened, sinks, held)]
        return sorted(ended, key=lambda one: (one.epoch, one.generation, one.sink, one.slice or 0))
    finally:
        if alone:
            opened.journal.store.unlock()


def _fence(opened: Opened, attempts: Iterable[Attempt]) -> None:
    """Afterwards each of them has a decision. Generation 0 is of a transaction that never got as far as its token."""
    decided = {record.attempt for record in opened.journal.records()}
    for attempt in sorted(set(attempts) - decided):
        if attempt.generation > 0:
            opened.journal.put(Record(attempt, Decision.ABORT, reason=REASON))


def _standing(opened: Opened, epoch: int | None) -> list[tuple[Attempt, Vote]]:
    """The votes in force of the epochs that Spark has not logged as done, with the attempt that cast each."""
    records = [record for record in opened.journal.records() if not opened.is_settled(record.attempt.epoch)]
    found: list[tuple[Attempt, Vote]] = []
    for number in sorted({record.attempt.epoch for record in records if epoch in (None, record.attempt.epoch)}):
        attempts = [record for record in records if record.attempt.epoch == number]
        standing = [vote for vote in in_force(attempts) or () if vote.committable is not None]
        found += [(one.attempt, vote) for one in attempts for vote in one.votes if vote in standing]
    return found


def _commit_decided(opened: Opened, sinks: Sinks, epoch: int | None) -> list[Ended]:
    ended: list[Ended] = []
    standing = _standing(opened, epoch)
    for name, sink in sinks.items():
        votes = [(attempt, vote) for attempt, vote in standing if vote.sink == name]
        outcomes = _commit(sink, [vote.committable for _, vote in votes])
        ended += [
            _ended(name, name_of(vote), attempt, vote.slice, _words(outcome))
            for (attempt, vote), outcome in zip(votes, outcomes, strict=True)
        ]
    return ended


def _commit(sink: TransactionalSink[Any], committables: list[Json]) -> list[Outcome]:
    """Some commits are confirmed at the second try only: their server was just busy with them."""
    outcomes = sink.commit_all(committables, recovering=True) if committables else []
    for _ in range(TRIES - 1):
        again = [number for number, outcome in enumerate(outcomes) if outcome.unsettled]
        if not again:
            break
        answers = sink.commit_all([committables[number] for number in again], recovering=True)
        for number, answer in zip(again, answers, strict=True):
            outcomes[number] = answer
    return outcomes


def _roll_back(opened: Opened, sinks: Sinks, held: list[tuple[str, OpenTransaction]]) -> list[Ended]:
    """What no decision names. A vote of any COMMIT is never touched, in force or not."""
    kept = [(vote.sink, vote.committable) for record in opened.journal.records() for vote in record.votes]
    ended: list[Ended] = []
    for name, found in held:
        if (name, found.committable) not in kept:
            sinks[name].abort(found.committable)
            ended.append(_ended(name, found.name, found.attempt, found.slice, ROLLED_BACK))
    return ended


def _words(outcome: Outcome) -> str:
    if outcome.confirmed:
        return Outcome.COMMITTED.value
    return "not confirmed" if outcome.unsettled else outcome.value


def _ended(sink: str, name: str, attempt: Attempt, slice_: int | None, how: str) -> Ended:
    return Ended(sink, name, attempt.epoch, attempt.generation, slice_, how)
