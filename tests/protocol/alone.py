"""One driver on the model world, without rivals in the way: for tests that look at a single ending."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from programs import Protocol
from world import Rules, World

from tallystick.errors import CommitPendingError, TallystickError
from tallystick.protocol import (
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Note,
    Prepare,
    Put,
    Recall,
    Settled,
    Wait,
    exactly_once,
)
from tallystick.records import Attempt, Decision, Fingerprint, Outcome, Vote


@dataclass(frozen=True)
class Drifting(Rules):
    """A job that is not deterministic: each generation computes other rows for these slices."""

    drifts: frozenset[tuple[str, int]] = frozenset()

    def votes(self, command: Prepare) -> tuple[Vote, ...]:
        return tuple(
            Vote(vote.sink, vote.slice, Fingerprint(1, 1000 + command.attempt.generation), vote.committable)
            if vote.key in self.drifts
            else vote
            for vote in super().votes(command)
        )


class Run(NamedTuple):
    """How it went: the world after it, the commands in order, and the end."""

    world: World
    commands: list[Command]
    end: Finished | TallystickError

    def notes(self) -> dict[str, Any]:
        return {command.kind: command.details for command in self.commands if isinstance(command, Note)}

    def decision(self, attempt: Attempt) -> Decision | None:
        record = self.world.decided(attempt.epoch, attempt.generation)
        return None if record is None else record.decision

    def published(self) -> list[str]:
        return [transaction.name for transaction in self.world.published]


@dataclass
class Server:
    """Answers commands. ``says`` are outcomes to give, in order, before the world's own; they have no effect."""

    rules: Rules
    world: World
    patience_tries: int = 3
    says: list[Outcome] = field(default_factory=list)
    breaks: TallystickError | None = None
    """Raised by the first Prepare, after it staged everything."""

    def perform(self, command: Command) -> Any:
        match command:
            case Recall(attempt):
                return self.rules.recall(self.world, attempt)
            case Put(record):
                standing, self.world = self.rules.put(self.world, record)
                return standing.record
            case Prepare():
                for transaction in self.rules.to_stage(command):
                    self.world = self.rules.begin(self.world, transaction)
                if self.breaks is not None:
                    raise self.breaks
                return self.rules.votes(command)
            case Commit(votes, _):
                return tuple(self._commit(vote) for vote in votes)
            case AbortOrphans():
                orphans = self.rules.orphans(self.world, command)
                self.world = self.world._replace(open=self.world.open - orphans)
                return len(orphans)
            case Wait(tries, _) if tries >= self.patience_tries:
                raise CommitPendingError("patience is out")
            case Wait() | Note() | Settled():
                return None

    def _commit(self, vote: Vote) -> Outcome:
        if self.says:
            return self.says.pop(0)
        outcome, self.world = self.rules.commit(self.world, vote)
        return outcome


def run(
    rules: Rules | None = None,
    world: World | None = None,
    protocol: Protocol = exactly_once,
    epoch: int = 0,
    says: tuple[Outcome, ...] = (),
    breaks: TallystickError | None = None,
    die_before: type[Command] | None = None,
) -> Run:
    """A new generation runs one epoch to its end, or dies before its first command of a kind."""
    world = world or World()
    claimed = world._replace(claims=(*world.claims, epoch))
    server = Server(rules or Rules(), claimed, says=list(says), breaks=breaks)
    steps = protocol(Attempt(epoch, len(claimed.claims)))
    commands: list[Command] = []
    answer: Any = None
    failure: TallystickError | None = None
    try:
        while True:
            command = steps.send(answer) if failure is None else steps.throw(failure)
            if die_before is not None and isinstance(command, die_before):
                return Run(server.world, commands, TallystickError("killed"))
            commands.append(command)
            try:
                answer, failure = server.perform(command), None
            except TallystickError as error:
                answer, failure = None, error
    except StopIteration as end:
        finished: Finished = end.value
        return Run(server.world, commands, finished)
    except TallystickError as error:
        return Run(server.world, commands, error)


def expire(world: World, *names: str) -> World:
    """The server rolls these back."""
    gone = frozenset(transaction for transaction in world.open if transaction.name in names)
    if len(gone) != len(names):
        raise LookupError(f"{names} are not all open: {sorted(held.name for held in world.open)}")
    return world._replace(open=world.open - gone)
