"""Each way in which one driver's epoch can end, good or bad, on the model world."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from alone import Drifting, Run, expire, run
from world import Rules, World

from tallystick.errors import (
    CommitPendingError,
    CommitRefusedError,
    ConflictError,
    ExpiredError,
    FencedError,
    PrepareError,
    TallystickError,
)
from tallystick.protocol import MODES, Commit, Finished, Prepare, Put, Wait, at_least_once, at_most_once, exactly_once
from tallystick.records import Attempt, Decision, Mode, Outcome, Parts, Record, Resolution

FIRST, SECOND = "0.1/a0#0", "0.1/a1#0"
DRIFTING = Drifting(drifts=frozenset({("a", 1)}))


def decided_then_killed(rules: Rules | None = None) -> World:
    """Generation 1 has put COMMIT and died before it committed anything."""
    return run(rules, die_before=Commit).world


def failed(ended: Run, kind: type[TallystickError]) -> TallystickError:
    assert isinstance(ended.end, kind), ended.end
    return ended.end


def finished(ended: Run) -> Finished:
    assert isinstance(ended.end, Finished), ended.end
    return ended.end


def test_an_undisturbed_epoch_is_written() -> None:
    ended = run()
    assert finished(ended).how == "written"
    assert ended.published() == [FIRST, SECOND]
    assert ended.notes() == {}
    assert not ended.world.open


def test_a_decided_epoch_is_recovered_verified_and_signed() -> None:
    """Essay 3: the driver that only verified has a COMMIT of its own, which replaces nothing."""
    ended = run(world=decided_then_killed())
    assert finished(ended).how == "verified"
    assert ended.published() == [FIRST, SECOND]
    signed = ended.world.decided(0, 2)
    assert signed is not None
    assert (signed.decision, signed.votes, signed.replaces) == (Decision.COMMIT, (), Parts())


@pytest.mark.parametrize(("mode", "how"), [(Mode.EXACTLY_ONCE, "verified"), (Mode.AT_MOST_ONCE, "skipped")])
def test_a_driver_that_writes_nothing_meets_its_abort(mode: Mode, how: str) -> None:
    """Essay 3: while it verifies, a successor fences it; it must not go on to the next epoch."""
    protocol = MODES[mode]
    before = run(world=decided_then_killed(), protocol=protocol, die_before=Prepare).world
    steps = protocol(Attempt(0, 2))
    answers = Rules().recall(before, Attempt(0, 2)), 0, (Outcome.COMMITTED,) * 2
    next(steps)
    command = [steps.send(answer) for answer in answers[: 3 if how == "verified" else 2]][-1]
    assert isinstance(command, Prepare)
    signing = steps.send(Rules().votes(command))
    assert isinstance(signing, Put)
    assert signing.record.decision is Decision.COMMIT
    steps.send(Record(Attempt(0, 2), Decision.ABORT, reason="fenced by generation 3"))
    with pytest.raises(FencedError, match="fenced by generation 3"):
        steps.send(0)


def test_expired_slices_are_rewritten_under_a_new_attempt() -> None:
    """Essay 6."""
    ended = run(world=expire(decided_then_killed(), SECOND))
    assert finished(ended).how == "rewritten"
    assert ended.published() == [FIRST, "0.2/a1#0"]


def test_expired_right_after_the_decision_stops_the_run_and_the_next_one_rewrites() -> None:
    ended = run(says=(Outcome.EXPIRED,))
    assert "nothing is lost" in str(failed(ended, ExpiredError))
    again = run(world=expire(ended.world, FIRST))
    assert finished(again).how == "rewritten"
    assert again.published() == ["0.2/a0#0", SECOND]


def test_a_replay_with_other_rows_is_a_conflict_and_publishes_nothing_of_it() -> None:
    before = expire(decided_then_killed(DRIFTING), SECOND)
    ended = run(DRIFTING, before)
    error = failed(ended, ConflictError)
    assert error.details == {"epoch": 0, "slices": [("a", 1)]}
    assert "tallystick transactions resolve CHECKPOINT 0 --rewrite" in str(error)
    assert ended.decision(Attempt(0, 2)) is Decision.ABORT
    assert ended.published() == [FIRST]
    assert not ended.world.open, "what the replay staged is rolled back"


def test_a_conflict_stays_one_until_a_person_chooses() -> None:
    ended = run(DRIFTING, expire(decided_then_killed(DRIFTING), SECOND))
    again = run(DRIFTING, ended.world)
    failed(again, ConflictError)
    assert again.published() == [FIRST]


def test_resolved_by_rewrite_the_rows_of_the_replay_are_published() -> None:
    before = expire(decided_then_killed(DRIFTING), SECOND)
    ended = run(replace(DRIFTING, resolution=Resolution.REWRITE), before)
    assert finished(ended).how == "rewritten"
    assert ended.published() == [FIRST, "0.2/a1#0"]
    assert ended.decision(Attempt(0, 2)) is Decision.COMMIT


def test_resolved_by_abandon_the_expired_slices_are_given_up_and_noted() -> None:
    before = expire(decided_then_killed(DRIFTING), SECOND)
    ended = run(replace(DRIFTING, resolution=Resolution.ABANDON), before)
    assert finished(ended).how == "verified"
    assert ended.published() == [FIRST]
    assert [vote["committable"] for vote in ended.notes()["abandoned"]["votes"]] == [SECOND]


def test_other_rows_in_a_verified_epoch_are_noted_not_written() -> None:
    ended = run(DRIFTING, decided_then_killed(DRIFTING))
    assert finished(ended).how == "verified"
    assert ended.published() == [FIRST, SECOND]
    assert set(ended.notes()["not deterministic"]["sinks"]) == {"a"}


def test_a_refused_commit_names_the_slice_and_keeps_it() -> None:
    ended = run(says=(Outcome.COMMITTED, Outcome.REFUSED))
    assert failed(ended, CommitRefusedError).details["slices"] == [("a", 1)]
    assert ended.decision(Attempt(0, 1)) is Decision.COMMIT
    assert SECOND in {transaction.name for transaction in ended.world.open}
    assert run(world=ended.world).published() == [FIRST, SECOND], "the next run goes on committing"


@pytest.mark.parametrize("doubt", [Outcome.UNKNOWN, Outcome.RETRY_LATER])
def test_doubtful_commits_are_asked_for_again_and_only_they(doubt: Outcome) -> None:
    """Essay 7."""
    ended = run(world=decided_then_killed(), says=(doubt, Outcome.ALREADY_COMMITTED, doubt))
    finished(ended)
    asked = [[vote.committable for vote in c.votes] for c in ended.commands if isinstance(c, Commit)]
    assert asked == [[FIRST, SECOND], [FIRST], [FIRST]]
    assert [c.tries for c in ended.commands if isinstance(c, Wait)] == [1, 2]


def test_a_second_try_counts_as_recovering() -> None:
    ended = run(says=(Outcome.UNKNOWN,))
    assert [c.recovering for c in ended.commands if isinstance(c, Commit)] == [False, True]


def test_without_patience_the_commit_stays_pending_and_the_next_run_ends_it() -> None:
    ended = run(says=(Outcome.UNKNOWN,) * 6)
    failed(ended, CommitPendingError)
    assert ended.published() == []
    assert ended.decision(Attempt(0, 1)) is Decision.COMMIT
    assert run(world=ended.world).published() == [FIRST, SECOND]


@pytest.mark.parametrize("protocol", [exactly_once, at_least_once])
def test_a_failed_prepare_is_aborted_and_swept(protocol: type) -> None:
    """Essay 2: before the decision every failure rolls back."""
    ended = run(protocol=protocol, breaks=PrepareError("disk full"))
    assert str(failed(ended, PrepareError)) == "disk full"
    record = ended.world.decided(0, 1)
    assert record is not None
    assert (record.decision, record.reason) == (Decision.ABORT, "disk full")
    assert not ended.world.open


def test_a_failed_prepare_of_at_most_once_is_lost_for_good() -> None:
    ended = run(protocol=at_most_once, breaks=PrepareError("disk full"))
    failed(ended, PrepareError)
    again = run(protocol=at_most_once, world=ended.world)
    assert finished(again).how == "skipped"
    assert again.published() == []
    assert not again.world.open


def test_at_least_once_repeats_a_decided_epoch() -> None:
    world = run(protocol=at_least_once).world
    assert run(protocol=at_least_once, world=world).published() == [FIRST, "0.2/a0#0", SECOND, "0.2/a1#0"]


def test_a_driver_that_finds_its_own_decision_stops_before_it_writes() -> None:
    world = World(claims=())
    _, world = Rules().put(world, Record(Attempt(0, 1), Decision.ABORT, reason="fenced by generation 2"))
    ended = run(world=world)
    failed(ended, FencedError)
    assert not [command for command in ended.commands if isinstance(command, Prepare)]


def test_the_protocol_imports_neither_spark_nor_arrow() -> None:
    code = "import sys, tallystick.protocol.epoch; print(sorted({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
