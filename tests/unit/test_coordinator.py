"""The coordinator without Spark: scripted protocols, and whole epochs over a sink and a journal in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.errors import (
    CheckpointError,
    CommitPendingError,
    CommitRefusedError,
    ExpiredError,
    FencedError,
    ForeignCheckpointError,
    JournalError,
    PrepareError,
    TallystickError,
)
from tallystick.guarantees import Kind, SinkFacts
from tallystick.journal import Journal, MemoryStore, audit
from tallystick.protocol import (
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Prepare,
    Put,
    Recall,
    Steps,
    Wait,
)
from tallystick.records import Attempt, Decision, Fingerprint, Json, Mode, Outcome, Parts, Record, Vote
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink, TransactionState
from tallystick.spark import coordinator as module
from tallystick.spark.coordinator import Coordinator, Plan, drive


class Ledger(TransactionalSink[str]):
    """A server that holds transactions open by name until they are ended. ``says`` scripts its answers."""

    facts = SinkFacts("ledger", Kind.TRANSACTIONAL, Mode.EXACTLY_ONCE, "in memory")

    def __init__(self) -> None:
        self.open: dict[str, Attempt] = {}
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.says: list[Outcome] = []
        self.recovering: list[bool] = []

    @property
    def target(self) -> str:
        return "ledger:test"

    def begin_transaction(self, context: SliceContext) -> str:
        self.open[context.name] = context.attempt
        return context.name

    def write(self, transaction: str, rows: Any) -> None:
        """Rows do not matter here."""

    def pre_commit(self, transaction: str) -> Json:
        return {"name": transaction}

    def rollback(self, transaction: str) -> None:
        self.open.pop(transaction)

    def commit(self, committable: Json) -> Outcome:
        if self.says:
            return self.says.pop(0)
        name = committable["name"]
        if name in self.committed:
            return Outcome.ALREADY_COMMITTED
        if self.open.pop(name, None) is None:
            return Outcome.EXPIRED
        self.committed.append(name)
        return Outcome.COMMITTED

    def commit_all(self, committables: Any, recovering: bool) -> list[Outcome]:
        self.recovering.append(recovering)
        return super().commit_all(committables, recovering)

    def abort(self, committable: Json) -> None:
        if self.open.pop(committable["name"], None) is not None:
            self.aborted.append(committable["name"])

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return [
            OpenTransaction(attempt, TransactionState.PRE_COMMITTED, {"name": name}, name)
            for name, attempt in self.open.items()
        ]

    def stage(self, attempt: Attempt, slice_: int = 0, task: int = 0, sink: str = "a") -> Vote:
        """What a task leaves behind: an open transaction, and its vote."""
        context = SliceContext("job", attempt, sink, slice_, task)
        return Vote(sink, slice_, Fingerprint(1, slice_ + 1), self.pre_commit(self.begin_transaction(context)))


class Driver(Coordinator):
    """One start of the job. Two slices per epoch and sink; ``meanwhile`` happens elsewhere while it prepares."""

    def __init__(self, world: World, patience_s: float = 300.0, mode: Mode = Mode.EXACTLY_ONCE) -> None:
        plan = Plan(
            "pv",
            "job",
            {},
            mode,
            str(world.checkpoint),
            (),
            dict(world.sinks),
            commit_patience_s=patience_s,
            on_finished=self.finished,
        )
        super().__init__(plan, Journal(world.store))
        self.world = world
        self.endings: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def finished(self, attempt: Attempt, finished: Finished) -> None:
        self.endings.append(finished.how)

    def _prepare(self, command: Prepare) -> tuple[Vote, ...]:
        self._clock.lap("settle")
        votes = []
        for name, sink in self.world.sinks.items():
            for number in range(2):
                counted = Vote(name, number, Fingerprint(1, number + 1))
                wanted = command.write is None or counted in command.write
                votes.append(sink.stage(command.attempt, number, sink=name) if wanted else counted)
        self.meanwhile()
        self._clock.lap("prepare")
        return tuple(votes)

    def epoch(self, number: int, offsets: str = "1") -> str:
        """Run an epoch as Spark would; returns how it ended."""
        log = self.world.checkpoint / "offsets" / str(number)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"v1\n{{}}\n{offsets}")
        rows: Any = SimpleNamespace(sparkSession=None)
        self.run_epoch(rows, number)
        return self.endings[-1]


@dataclass
class World:
    """What outlives a driver."""

    checkpoint: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    sinks: dict[str, Ledger] = field(default_factory=lambda: {"a": Ledger()})

    @property
    def journal(self) -> Journal:
        return Journal(self.store)

    def start(self, **settings: Any) -> Driver:
        return Driver(self, **settings)

    def names(self, sink: str = "a") -> list[str]:
        return [f"{name.split('-')[0]}/{int(name.split('-')[1])}" for name in self.sinks[sink].committed]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_FIRST_S", 0.0001)


class TestDrive:
    ME = Attempt(0, 1)

    def test_answers_go_in_and_the_ending_comes_out(self) -> None:
        asked: list[Command] = []

        def steps() -> Steps:
            first = yield Recall(self.ME)
            second = yield AbortOrphans(self.ME)
            return Finished(f"{first} {second}", ())

        def perform(command: Command) -> str:
            asked.append(command)
            return type(command).__name__

        assert drive(steps(), perform).how == "Recall AbortOrphans"
        assert asked == [Recall(self.ME), AbortOrphans(self.ME)]

    def test_a_failure_of_ours_is_thrown_into_the_protocol(self) -> None:
        def steps() -> Steps:
            try:
                yield Prepare(self.ME, None)
            except PrepareError as failure:
                answer = yield Put(Record(self.ME, Decision.ABORT, reason=str(failure)))
                return Finished(answer, ())
            raise AssertionError("no failure came in")

        def perform(command: Command) -> str:
            match command:
                case Prepare():
                    raise PrepareError("the disk is full")
                case Put(record):
                    return f"aborted: {record.reason}"
            raise AssertionError(command)

        assert drive(steps(), perform).how == "aborted: the disk is full"

    @pytest.mark.parametrize("error", [FencedError("fenced"), JournalError("torn"), TallystickError("else")])
    def test_what_the_protocol_does_not_handle_comes_out(self, error: TallystickError) -> None:
        def steps() -> Steps:
            yield Recall(self.ME)
            raise AssertionError("went on after a failure")

        def perform(command: Command) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            drive(steps(), perform)
        assert caught.value is error

    def test_a_failure_while_a_failure_is_handled(self) -> None:
        def steps() -> Steps:
            try:
                yield Prepare(self.ME, None)
            except PrepareError:
                yield Put(Record(self.ME, Decision.ABORT))
                raise
            raise AssertionError

        def perform(command: Command) -> None:
            raise PrepareError("full") if isinstance(command, Prepare) else JournalError("gone")

        with pytest.raises(JournalError, match="gone") as caught:
            drive(steps(), perform)
        assert isinstance(caught.value.__context__, PrepareError)

    def test_a_bug_is_not_handed_to_the_protocol(self) -> None:
        """Only named failures have a meaning there; anything else must not be taken for one."""
        seen: list[BaseException] = []

        def steps() -> Steps:
            try:
                yield Recall(self.ME)
            except Exception as failure:
                seen.append(failure)
                raise
            raise AssertionError

        def perform(command: Command) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            drive(steps(), perform)
        assert seen == []


class TestEpochs:
    def test_an_epoch_is_written(self, world: World) -> None:
        assert [world.start().epoch(0)] == ["written"]
        assert len(world.sinks["a"].committed) == 2
        [record] = world.journal.records()
        assert record.attempt == Attempt(0, 1)
        assert record.read.offsets == (1,)
        assert record.facts["prepare_s"] >= 0

    def test_one_driver_is_one_generation(self, world: World) -> None:
        driver = world.start()
        for epoch in range(3):
            driver.epoch(epoch)
        assert world.journal.generations() == [1]
        assert world.journal.generation(1)["first_epoch"] == 0

    def test_an_epoch_that_spark_repeats_is_verified(self, world: World) -> None:
        world.start().epoch(0)
        assert world.start().epoch(0) == "verified"
        assert len(world.sinks["a"].committed) == 2

    def test_a_driver_that_was_fenced_publishes_nothing(self, world: World) -> None:
        zombie, successor = world.start(), world.start()
        zombie.meanwhile = lambda: successor.epoch(0)
        with pytest.raises(FencedError, match="another driver has taken over") as caught:
            zombie.epoch(0)
        assert caught.value.details["epoch"] == 0
        assert zombie.failure is caught.value
        assert world.names() == [f"{Attempt(0, 2)}/{number}" for number in range(2)]
        assert world.sinks["a"].open == {}

    def test_a_failed_prepare_is_aborted_and_rolled_back(self, world: World) -> None:
        driver = world.start()

        def fail() -> None:
            raise PrepareError("epoch 0 could not be prepared: full", epoch=0)

        driver.meanwhile = fail
        with pytest.raises(PrepareError):
            driver.epoch(0)
        [record] = world.journal.records()
        assert (record.decision, record.reason) == (Decision.ABORT, "epoch 0 could not be prepared: full")
        assert world.sinks["a"].open == {}
        assert world.start().epoch(0) == "written"

    @pytest.mark.parametrize(
        ("outcome", "error"), [(Outcome.EXPIRED, ExpiredError), (Outcome.REFUSED, CommitRefusedError)]
    )
    def test_bad_endings_name_the_epoch(self, world: World, outcome: Outcome, error: type[TallystickError]) -> None:
        driver = world.start()
        driver.epoch(0)
        world.sinks["a"].says = [Outcome.COMMITTED, outcome]
        with pytest.raises(error, match="slice a/1") as caught:
            driver.epoch(1)
        assert caught.value.details == {"epoch": 1, "slices": [("a", 1)]}

    def test_a_transaction_of_a_task_that_ran_twice_is_rolled_back(self, world: World) -> None:
        """Spark may run a task again, also when all goes well. Nobody decides on the other transaction, and a server
        such as PostgreSQL holds it, with its locks, until somebody ends it: the next epoch at the latest."""
        driver = world.start()
        driver.meanwhile = lambda: world.sinks["a"].stage(Attempt(0, 1), slice_=1, task=99)
        driver.epoch(0)
        driver.meanwhile = lambda: None
        driver.epoch(1)
        assert world.sinks["a"].open == {}


class TestZombies:
    def test_one_that_wakes_up_after_its_abort_was_pruned(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing stands in its way but the horizon."""
        monkeypatch.setattr(audit, "GENERATIONS_KEPT", 1)
        zombie = world.start()

        def years_later() -> None:
            world.sinks["a"].open.clear()
            for start in range(3):
                for epoch in range(3 * start, 3 * start + 3):
                    driver = world.start()
                    driver.epoch(epoch)
            world.sinks["a"].stage(Attempt(0, 1))
            while audit.roll_up(world.journal, settled=8, epochs=3):
                pass
            assert world.journal.records(0) == (), "the ABORT that should have stopped it is gone"

        zombie.meanwhile = years_later
        with pytest.raises(FencedError, match="rolled up"):
            zombie.epoch(0)
        assert f"{Attempt(0, 1)}/0" not in world.names()
        assert world.journal.records(0) == (), "and it leaves nothing behind"

    def test_an_epoch_that_was_rolled_up_is_not_run_again(self, world: World) -> None:
        driver = world.start()
        for epoch in range(6):
            driver.epoch(epoch)
        audit.roll_up(world.journal, settled=5, epochs=3)
        with pytest.raises(ForeignCheckpointError, match="epoch 2 was settled and rolled up long ago"):
            world.start().epoch(2)

    def test_other_offsets_than_decided_on_are_noticed(self, world: World) -> None:
        world.start().epoch(0, offsets='{"offset":5}')
        with pytest.raises(ForeignCheckpointError, match=r"decided for the offsets \[\{'offset': 5\}\].*now reads"):
            world.start().epoch(0, offsets='{"offset":6}')
        assert len(world.journal.records()) == 1


class TestOrphans:
    ME = Attempt(5, 3)

    def test_who_is_rolled_back_and_who_is_not(self, world: World) -> None:
        ledger = world.sinks["a"]
        cases = {
            Attempt(5, 3): True,
            Attempt(5, 2): True,
            Attempt(4, 3): True,
            Attempt(0, 1): True,
            Attempt(5, 4): False,
            Attempt(4, 4): False,
            Attempt(6, 3): False,
            Attempt(6, 2): False,
        }
        votes = {attempt: ledger.stage(attempt) for attempt in cases}
        count = world.start().perform(AbortOrphans(self.ME))
        rolled_back = {attempt for attempt in cases if votes[attempt].committable["name"] in ledger.aborted}
        assert rolled_back == {attempt for attempt, ended in cases.items() if ended}
        assert count == len(rolled_back)

    def test_what_was_decided_stays(self, world: World) -> None:
        ledger = world.sinks["a"]
        decided = [ledger.stage(Attempt(5, 1), number) for number in range(2)]
        twice = ledger.stage(Attempt(5, 1), 1, task=7)
        assert world.start().perform(AbortOrphans(self.ME, tuple(decided))) == 1
        assert ledger.aborted == [twice.committable["name"]]

    def test_a_committable_of_another_sink_protects_nothing(self, world: World) -> None:
        world.sinks["b"] = Ledger()
        kept = world.sinks["a"].stage(Attempt(5, 1))
        world.sinks["b"].stage(Attempt(5, 1))
        assert world.start().perform(AbortOrphans(self.ME, (kept,))) == 1
        assert list(world.sinks["a"].open) == [kept.committable["name"]]
        assert world.sinks["b"].open == {}

    def test_nothing_open_nothing_to_do(self, world: World) -> None:
        assert world.start().perform(AbortOrphans(self.ME)) == 0


class TestCommit:
    def test_outcomes_are_in_the_order_of_the_votes(self, world: World) -> None:
        world.sinks["b"] = Ledger()
        world.sinks["a"].says = [Outcome.COMMITTED, Outcome.EXPIRED]
        world.sinks["b"].says = [Outcome.UNKNOWN, Outcome.REFUSED]
        votes = tuple(
            world.sinks[sink].stage(Attempt(0, 1), number, sink=sink)
            for sink, number in [("b", 1), ("a", 0), ("b", 0), ("a", 1)]
        )
        outcomes = world.start().perform(Commit(votes))
        assert outcomes == (Outcome.UNKNOWN, Outcome.COMMITTED, Outcome.REFUSED, Outcome.EXPIRED)

    def test_a_sink_that_is_not_declared_any_more(self, world: World) -> None:
        vote = Vote("gone", 0, Fingerprint(1, 1), {"name": "x"})
        with pytest.raises(
            CheckpointError, match=r"sink 'gone', which this job does not have: it has a\. declare that"
        ):
            world.start().perform(Commit((vote,)))

    def test_a_decided_sink_that_is_not_declared_any_more_stops_the_epoch(self, world: World) -> None:
        world.start().epoch(0)
        world.sinks = {"other": Ledger()}
        with pytest.raises(CheckpointError, match="sink 'a', which this job does not have"):
            world.start().epoch(0)
        assert world.sinks["other"].open == {}, "nothing was prepared"

    def test_a_sink_that_answers_too_few(self, world: World) -> None:
        class Short(Ledger):
            def commit_all(self, committables: Any, recovering: bool) -> list[Outcome]:
                return super().commit_all(committables, recovering)[1:]

        world.sinks["a"] = Short()
        votes = tuple(world.sinks["a"].stage(Attempt(0, 1), number) for number in range(2))
        with pytest.raises(ValueError):
            world.start().perform(Commit(votes))

    def test_doubts_are_asked_again_as_recovery(self, world: World) -> None:
        world.sinks["a"].says = [Outcome.UNKNOWN, Outcome.RETRY_LATER, Outcome.RETRY_LATER]
        assert world.start().epoch(0) == "written"
        assert world.sinks["a"].recovering == [False, True, True]
        assert len(world.sinks["a"].committed) == 2


class Unreachable(Ledger):
    """Answers nothing but "later"; each question takes a while."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.asked = 0

    def commit(self, committable: Json) -> Outcome:
        self.asked += 1
        time.sleep(self.takes_s)
        return Outcome.RETRY_LATER


class TestPatience:
    def test_it_ends_with_a_name_and_nothing_is_lost(self, world: World) -> None:
        world.sinks["a"] = Unreachable()
        with pytest.raises(
            CommitPendingError, match=r"2 decided commits of epoch 0.*first is a/0.*start the job"
        ) as caught:
            world.start(patience_s=0.02).epoch(0)
        assert caught.value.details == {"epoch": 0, "slices": [("a", 0), ("a", 1)]}
        healed = Ledger()
        healed.open = world.sinks["a"].open
        world.sinks["a"] = healed
        assert world.start().epoch(0) == "verified"
        assert len(healed.committed) == 2

    def test_the_time_of_the_questions_counts(self, world: World) -> None:
        """A server that lets every question time out would else use up many times the patience."""
        slow = Unreachable(takes_s=0.02)
        world.sinks["a"] = slow
        with pytest.raises(CommitPendingError):
            world.start(patience_s=0.05).epoch(0)
        assert slow.asked <= 8

    def test_every_epoch_has_its_own(self, world: World) -> None:
        driver = world.start(patience_s=0.05)
        for epoch in range(4):
            world.sinks["a"].says = [Outcome.RETRY_LATER, Outcome.COMMITTED]
            driver.epoch(epoch)
            time.sleep(0.03)
        assert driver.endings == ["written"] * 4

    def test_no_patience_still_asks_twice(self, world: World) -> None:
        world.sinks["a"].says = [Outcome.RETRY_LATER]
        assert world.start(patience_s=0).epoch(0) == "written"

    def test_pauses_grow_and_are_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        slept: list[float] = []
        monkeypatch.setattr(f"{module.__name__}.time.sleep", slept.append)
        monkeypatch.setattr(module, "WAIT_FIRST_S", 0.05)
        driver = world.start()
        vote = Vote("a", 0, Fingerprint(1, 1), {"name": "x"})
        for tries in range(1, 30):
            driver.perform(Wait(tries, (vote,)))
        assert slept == sorted(slept)
        assert slept[0] <= 0.2
        assert slept[-1] == module.WAIT_LONGEST_S


class TestClock:
    def test_a_clock_that_jumps_back_gives_no_negative_durations(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hours = iter(range(1000, 0, -1))
        monkeypatch.setattr(f"{module.__name__}.time.time", lambda: next(hours) * 3600.0)
        driver = world.start()
        for epoch in range(3):
            driver.epoch(epoch)
        facts: list[Mapping[str, Json]] = [record.facts for record in world.journal.records()]
        assert facts[0]["at"] > facts[1]["at"], "the clock did jump"
        durations = [value for fact in facts for key, value in fact.items() if key.endswith("_s")]
        assert len(durations) >= 3 * 3
        assert min(durations) >= 0

    def test_the_steps_add_up_to_the_whole(self, world: World) -> None:
        driver = world.start()
        driver.meanwhile = lambda: time.sleep(0.02)
        driver.epoch(0)
        facts = world.journal.records()[0].facts
        assert facts["prepare_s"] >= 0.02
        parts = sum(value for key, value in facts.items() if key.endswith("_s") and key != "until_decision_s")
        assert parts == pytest.approx(facts["until_decision_s"], abs=0.001)


def test_an_epoch_that_spark_did_not_call_has_no_rows(world: World) -> None:
    coordinator = Coordinator(world.start().plan, world.journal)
    with pytest.raises(CheckpointError, match="no rows to prepare"):
        coordinator.perform(Prepare(Attempt(0, 1), Parts()))
