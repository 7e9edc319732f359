"""What may happen next: every step that drivers, Spark and servers can take from a state.

One step is one effect on the world: a journal read or write, one slice prepared, one slice committed, one sweep, one
line in Spark's commit log, a driver's start or death, or a server's whim. A driver may die between any two steps.
That covers a crash *before* and *after* every command, since an answer that is lost with its driver leaves the same
world as one that is never acted on, and a crash *inside* Prepare and Commit, since they take one step per slice.

A driver's errors end it, as they end a run of the job; it may be started again as long as there are generations left.
Commands that touch nothing others could act on (Note, Wait, Settled) are answered at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from programs import Programs
from world import Rules, World

from tallystick.errors import CommitPendingError, PrepareError, TallystickError
from tallystick.protocol import AbortOrphans, Commit, Finished, Note, Prepare, Put, Recall, Recalled, Settled, Wait
from tallystick.records import Attempt, Outcome

PATIENCE_TRIES = 2
UNCLAIMED = 0
"""`Driver.generation` before it is claimed; `Driver.place` is then the epoch that Spark will run first."""


class Budget(NamedTuple):
    """How many faults of each kind may still happen."""

    expiries: int = 0
    unknowns: int = 0
    failures: int = 0
    late: int = 0


class Driver(NamedTuple):
    """One process. ``progress`` is how far it is inside Prepare (slices) or Commit (outcomes)."""

    generation: int
    place: int
    progress: tuple[Any, ...] = ()


class State(NamedTuple):
    world: World
    drivers: tuple[Driver, ...]
    budget: Budget


class Step(NamedTuple):
    """Which generation (0: nobody's) did what, to what."""

    who: int
    what: str
    to: Any

    def __str__(self) -> str:
        found = self.to
        if isinstance(found, Recalled):
            records = ", ".join(f"{r.decision.value} {_short(r.attempt)}" for r in found.records)
            found = f"[{records}], rivals {list(found.rivals)}"
        elif isinstance(found, Attempt):
            found = _short(found)
        return f"{f'generation {self.who} ' if self.who else ''}{self.what} {found}".rstrip()


def _short(attempt: Attempt) -> str:
    return f"{attempt.epoch}.{attempt.generation}"


Next: TypeAlias = Iterator[tuple[Step, State]]


@dataclass(frozen=True)
class Bounds:
    """How far the exploration goes."""

    epochs: int = 2
    generations: int = 3
    alive: int = 2
    budget: Budget = Budget()  # noqa: RUF009 - immutable
    slow_starts: bool = False
    """Spark reads its commit log in one step and the driver claims its generation in a later one."""


class Moves:
    """The steps of one protocol under one set of rules."""

    def __init__(self, programs: Programs, rules: Rules, bounds: Bounds) -> None:
        self.programs, self.rules, self.bounds = programs, rules, bounds

    def all(self, state: State) -> Next:
        """Whatever may happen next, faults included."""
        yield from self._starts(state)
        for driver in state.drivers:
            yield Step(driver.generation, "dies", ""), _without(state, driver)
            yield from self.act(state, driver, self.bounds.epochs)
        yield from self._server_whims(state)

    def act(self, state: State, driver: Driver, epochs: int, faults: bool = True) -> Next:
        """All ways in which this driver's next step can go; exactly one without faults."""
        world, who = state.world, driver.generation
        if who == UNCLAIMED:
            yield self._claim(state, driver, epochs)
            return
        command = self.programs.places[driver.place].next
        if isinstance(command, Recall):
            recalled = self.rules.recall(world, command.attempt)
            key = (frozenset(held for held in world.journal if held.record in recalled.records), recalled.rivals)
            yield Step(who, "recalls", recalled), self._send(state, driver, recalled, key)
        elif isinstance(command, Put):
            standing, after = self.rules.put(world, command.record)
            wanted = f"{command.record.decision.value} {_short(command.record.attempt)}"
            step = Step(who, f"puts {wanted}, now stands", standing)
            yield step, self._send(state._replace(world=after), driver, standing.record, standing)
        elif isinstance(command, AbortOrphans):
            swept = world._replace(open=world.open - self.rules.orphans(world, command))
            yield Step(who, "sweeps", command.attempt), self._send(state._replace(world=swept), driver, 0, 0)
        elif isinstance(command, Prepare):
            yield from self._prepare(state, driver, command, faults)
        elif isinstance(command, Commit):
            yield from self._commit(state, driver, command, faults)
        elif isinstance(command, Finished):
            epoch = self.programs.places[driver.place].attempt.epoch
            logged = state._replace(world=world._replace(commits=max(world.commits, epoch + 1)))
            step = Step(who, f"has it {command.how}; Spark writes", f"commits/{epoch}")
            yield step, self._enter(logged, driver, epoch + 1, epochs)
        else:
            raise TypeError(f"generation {who} asks for {command!r}, which this world cannot answer")

    def _starts(self, state: State) -> Next:
        world, drivers, _ = state
        unclaimed = sum(driver.generation == UNCLAIMED for driver in drivers)
        if len(drivers) == self.bounds.alive or len(world.claims) + unclaimed == self.bounds.generations:
            return
        if world.commits < self.bounds.epochs:
            newcomer = Driver(UNCLAIMED, world.commits)
            started = state._replace(drivers=tuple(sorted((*drivers, newcomer))))
            if self.bounds.slow_starts:
                yield Step(UNCLAIMED, "a driver reads the commit log, will start at epoch", world.commits), started
            else:
                yield self._claim(started, newcomer, self.bounds.epochs)

    def _claim(self, state: State, newcomer: Driver, epochs: int) -> tuple[Step, State]:
        """The claim names the first epoch, so that others know which ABORT it will meet."""
        first = newcomer.place
        claims = (*state.world.claims, first)
        mine = Driver(len(claims), first)
        claimed = _replace(state._replace(world=state.world._replace(claims=claims)), newcomer, mine)
        return Step(mine.generation, "is claimed, first epoch", first), self._enter(claimed, mine, first, epochs)

    def _server_whims(self, state: State) -> Next:
        world, drivers, budget = state
        if budget.expiries:
            spent = budget._replace(expiries=budget.expiries - 1)
            for transaction in world.open:
                rolled_back = world._replace(open=world.open - {transaction})
                yield Step(0, "a server expires", transaction.name), State(rolled_back, drivers, spent)
        if budget.late:
            spent = budget._replace(late=budget.late - 1)
            for epoch, generation in world.staging:
                late = self.rules.transaction(Attempt(epoch, generation), self.rules.keys[0], task=budget.late)
                begun = self.rules.begin(world, late)
                if not spent.late:
                    begun = begun._replace(staging=frozenset())
                yield Step(0, "a late task prepares", late.name), State(begun, drivers, spent)

    def _prepare(self, state: State, driver: Driver, command: Prepare, faults: bool) -> Next:
        budget, who, staged = state.budget, driver.generation, len(driver.progress)
        stage = self.rules.to_stage(command)
        if faults and budget.failures and stage:
            spent = state._replace(budget=budget._replace(failures=budget.failures - 1))
            failure = PrepareError("a slice could not be staged")
            yield Step(who, "fails to prepare slice", staged), self._send(spent, driver, failure, "failure")
        if staged < len(stage):
            begun = self.rules.begin(state.world, stage[staged])
            if budget.late:
                begun = begun._replace(staging=begun.staging | {(command.attempt.epoch, command.attempt.generation)})
            state = state._replace(world=begun)
        if staged + 1 < len(stage):
            further = driver._replace(progress=(*driver.progress, "staged"))
            yield Step(who, "prepares", stage[staged].name), _replace(state, driver, further)
        else:
            what = f"prepares {stage[-1].name} and" if stage else "computes again and"
            yield Step(who, what, "has all votes"), self._send(state, driver, self.rules.votes(command), "votes")

    def _commit(self, state: State, driver: Driver, command: Commit, faults: bool) -> Next:
        vote = command.votes[len(driver.progress)]
        outcome, after = self.rules.commit(state.world, vote)
        endings = [(outcome, after, state.budget)]
        if faults and state.budget.unknowns:
            spent = state.budget._replace(unknowns=state.budget.unknowns - 1)
            endings.append((Outcome.UNKNOWN, state.world, spent))
            if after is not state.world:
                endings.append((Outcome.UNKNOWN, after, spent))
        for outcome, world, budget in endings:
            then = State(world, state.drivers, budget)
            effect = "published" if world is not state.world else "no effect"
            step = Step(driver.generation, f"commits {vote.committable}, {effect}, answer:", outcome.value)
            progress = (*driver.progress, outcome)
            if len(progress) == len(command.votes):
                yield step, self._send(then, driver, progress, progress)
            else:
                yield step, _replace(then, driver, driver._replace(progress=progress))

    def _enter(self, state: State, driver: Driver, epoch: int, epochs: int) -> State:
        """The driver goes to an epoch, or ends if there is none left."""
        if epoch >= epochs:
            return _without(state, driver)
        return self._arrive(state, driver, self.programs.start(Attempt(epoch, driver.generation)))

    def _send(self, state: State, driver: Driver, answer: Any, key: Any) -> State:
        return self._arrive(state, driver, self.programs.answer(driver.place, answer, key))

    def _arrive(self, state: State, driver: Driver, place: int) -> State:
        """Go on to the next command that others can notice; an error is the driver's end."""
        while isinstance(command := self.programs.places[place].next, Note | Wait | Settled):
            if isinstance(command, Settled):
                settled = max(command.epoch, state.world.settled)
                state = state._replace(world=state.world._replace(settled=settled))
            if isinstance(command, Wait) and command.tries >= PATIENCE_TRIES:
                place = self.programs.answer(place, CommitPendingError("patience is out"), "pending")
            else:
                place = self.programs.answer(place, None, None)
        if isinstance(command, TallystickError):
            return _without(state, driver)
        return _replace(state, driver, Driver(driver.generation, place))


def _replace(state: State, old: Driver, new: Driver) -> State:
    others = list(state.drivers)
    others.remove(old)
    return state._replace(drivers=tuple(sorted((*others, new))))


def _without(state: State, gone: Driver) -> State:
    others = list(state.drivers)
    others.remove(gone)
    return state._replace(drivers=tuple(others))
