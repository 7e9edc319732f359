"""Random fault schedules against the real protocol, the real coordinator and the real journal on a real file system.

Only Spark and the sink are simulated. Drivers take turns command by command, so that any of them can be a zombie for
as long as the schedule likes; a crash forgets a driver between two commands, or in the middle of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.errors import PrepareError, SinkError, TallystickError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.protocol import MODES, Finished, Prepare, Put, Steps, Wait
from tallystick.records import Attempt, Decision, Fingerprint, Json, Mode, Outcome, Vote
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink, TransactionState
from tallystick.spark.coordinator import Coordinator, Plan

EPOCHS = 3
SLICES = 2
JOB = "job"
LIMIT = 500
"""Commands that a driver may need for the rest of its work; more is a driver that goes round in circles."""

CRASH, EXPIRE, DOUBT, FAIL = "crash", "expire", "doubt", "fail"
FAULTS = ("none", CRASH, "crash-inside", EXPIRE, DOUBT, FAIL)


@dataclass(frozen=True)
class Move:
    """Driver number ``driver`` carries out so many commands, then something happens to it or to the server.

    crash: it is gone, after its last command. crash-inside: in the middle of the next one. expire: the server rolls
    back whatever is open. doubt: the next commit takes effect, and its answer is lost. fail: the next slice cannot be
    staged.
    """

    driver: int
    commands: int
    fault: str


class WrongError(AssertionError):
    """The promise was broken."""


class Server(TransactionalSink[str]):
    """Holds transactions by name. ``rules`` are what the tests break."""

    facts = SinkFacts("simulated", Kind.TRANSACTIONAL, Mode.EXACTLY_ONCE, "in memory")

    def __init__(self, committed_at: Callable[[int], bool]) -> None:
        self.open: dict[str, Attempt] = {}
        self.published: Counter[tuple[int, int]] = Counter()
        self.ended: dict[str, str] = {}
        self.doubt = False
        self._committed_at = committed_at

    @property
    def target(self) -> str:
        return "simulated:server"

    def begin_transaction(self, context: SliceContext) -> str:
        self.open[context.name] = context.attempt
        return context.name

    def write(self, transaction: str, rows: Any) -> None:
        """A slice is what it is: its rows do not matter."""

    def pre_commit(self, transaction: str) -> Json:
        return {"name": transaction}

    def rollback(self, transaction: str) -> None:
        self.open.pop(transaction, None)

    def commit(self, committable: Json) -> Outcome:
        outcome = self._commit(committable["name"])
        if self.doubt:
            self.doubt = False
            return Outcome.UNKNOWN
        return outcome

    def _commit(self, name: str) -> Outcome:
        if self.ended.get(name) == "committed":
            return Outcome.ALREADY_COMMITTED
        if name not in self.open:
            return Outcome.EXPIRED
        attempt = self.open.pop(name)
        self.ended[name] = "committed"
        self.publish(attempt.epoch, int(name.split("-")[1]))
        return Outcome.COMMITTED

    def publish(self, epoch: int, slice_: int) -> None:
        if not self._committed_at(epoch):
            raise WrongError(f"dirty: slice {slice_} of epoch {epoch} was published before a decision")
        self.published[epoch, slice_] += 1

    def abort(self, committable: Json) -> None:
        if self.open.pop(committable["name"], None) is not None:
            self.ended[committable["name"]] = "aborted"

    def expire(self) -> None:
        for name in list(self.open):
            self.abort({"name": name})

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return [
            OpenTransaction(attempt, TransactionState.PRE_COMMITTED, {"name": name}, name)
            for name, attempt in self.open.items()
        ]


class Crash(BaseException):
    """The driver is gone in the middle of a command."""


class Driver(Coordinator):
    """One start of the job. `step` carries out one command."""

    def __init__(self, world: World) -> None:
        plan = Plan("pv", JOB, {}, world.mode, str(world.folder), (), {"out": world.server}, commit_patience_s=1e9)
        super().__init__(plan, Journal(PosixStore(world.folder / "journal")))
        self.world = world
        self.dead = False
        self.crash_inside = self.fail = False
        self._task = 0
        self._next = world.first_unfinished()
        self._steps: Steps | None = None
        self._answer: Any = None
        self._failure: TallystickError | None = None

    def step(self) -> bool:
        """False if there is nothing left to do, or nobody to do it."""
        if self.dead or self._next >= EPOCHS:
            return False
        try:
            self._step()
        except Crash:
            self.dead = True
        return not self.dead

    def _step(self) -> None:
        if self._steps is None:
            self._epoch = self._next
            self._steps = self.world.protocol(Attempt(self._next, self._claimed(self._next)))
            self._answer = self._failure = None
        try:
            answer, failure = self._answer, self._failure
            command = self._steps.send(answer) if failure is None else self._steps.throw(failure)
        except StopIteration as end:
            self._over(end.value)
            return
        except TallystickError:  # fenced, expired, pending: this run of the job is over
            self.dead = True
            return
        try:
            self._answer, self._failure = self.perform(command), None
        except TallystickError as failure:
            self._answer, self._failure = None, failure

    def _over(self, finished: Finished) -> None:
        """Spark notes the epoch. Of two drivers only one can."""
        if self._next in self.world.over:
            self.dead = True
            return
        self.world.over.add(self._next)
        self._steps, self._next = None, self._next + 1

    def perform(self, command: Any) -> Any:
        if self.crash_inside and isinstance(command, Put):
            raise Crash
        if isinstance(command, Wait):
            return None
        return super().perform(command)

    def _prepare(self, command: Prepare) -> tuple[Vote, ...]:
        votes = []
        for number in range(SLICES):
            self._task += 1
            if number and self.crash_inside:
                raise Crash
            counted = Vote("out", number, Fingerprint(1, command.attempt.epoch * SLICES + number))
            if command.write is not None and counted not in command.write:
                votes.append(counted)
                continue
            context = SliceContext(JOB, command.attempt, "out", number, self._task)
            staged = self.world.server.begin_transaction(context)
            if self.fail:
                self.fail = False
                raise PrepareError("a slice could not be staged")
            votes.append(Vote("out", number, counted.fingerprint, self.world.server.pre_commit(staged)))
        return tuple(votes)

    def _commit(self, votes: tuple[Vote, ...], recovering: bool) -> tuple[Outcome, ...]:
        if not self.crash_inside:
            return super()._commit(votes, recovering)
        super()._commit(votes[:1], recovering)
        raise Crash


@dataclass
class World:
    """What outlives drivers."""

    folder: Path
    mode: Mode = Mode.EXACTLY_ONCE
    protocol: Callable[[Attempt], Steps] = MODES[Mode.EXACTLY_ONCE]
    make_server: type[Server] = Server
    over: set[int] = field(default_factory=set)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.server = self.make_server(self._committed_at)

    def _committed_at(self, epoch: int) -> bool:
        records = Journal(PosixStore(self.folder / "journal")).records(epoch)
        return any(record.decision is Decision.COMMIT for record in records)

    def first_unfinished(self) -> int:
        return next((epoch for epoch in range(EPOCHS) if epoch not in self.over), EPOCHS)


def play(schedule: Sequence[Move], world: World) -> Counter[tuple[int, int]]:
    """Carry a schedule out, then let a driver without faults finish the work, then wake all zombies.

    Returns how often each slice was published. `WrongError` if one was before its decision.
    """
    drivers: dict[int, Driver] = {}
    for move in schedule:
        driver = drivers.get(move.driver)
        if driver is None or driver.dead:
            driver = drivers[move.driver] = Driver(world)
        for _ in range(move.commands):
            if not driver.step():
                break
        _happen(move.fault, driver, world)
    _finish(world)
    for zombie in drivers.values():
        for _ in range(LIMIT):
            if not zombie.step():
                break
    return world.server.published


def _happen(fault: str, driver: Driver, world: World) -> None:
    if fault == CRASH:
        driver.dead = True
    elif fault == "crash-inside":
        driver.crash_inside = True
    elif fault == EXPIRE:
        world.server.expire()
    elif fault == DOUBT:
        world.server.doubt = True
    elif fault == FAIL:
        driver.fail = True


def _finish(world: World) -> None:
    """Drivers without faults, one after the other: each ends with the work done, or by what is left to find."""
    for _ in range(LIMIT):
        if world.first_unfinished() == EPOCHS:
            return
        driver = Driver(world)
        for _ in range(LIMIT):
            if not driver.step():
                break
        else:
            raise WrongError("stuck: a driver without faults goes round in circles")
    raise SinkError("stuck: drivers without faults do not come to the end")


def all_slices() -> set[tuple[int, int]]:
    return {(epoch, number) for epoch in range(EPOCHS) for number in range(SLICES)}
