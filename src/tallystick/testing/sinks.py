"""The sink contract as tests. Subclass `SinkContract` in a test file, give the hooks, run pytest::

    from tallystick.testing import SinkContract

    class TestMySink(SinkContract):
        def make_sink(self, tmp_path):
            return MySink(...)              # a fresh sink on a fresh target

        def read_rows(self, sink):
            return [...]                    # what a reader of committed rows sees

Every test drives the verbs of `tallystick.sinks.base` directly, without Spark, against the real target; where a
process has to die, one is started and killed with SIGKILL. Idempotent and plain sinks are staged, as in a job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tallystick.errors import RowRefusedError
from tallystick.records import Attempt, Json, Outcome
from tallystick.sinks.base import JobContext, OpenTransaction, Sink, SliceContext, TransactionalSink, TransactionState
from tallystick.sinks.staged import StagedSink, lower
from tallystick.testing.doomed import commit_and_die, prepare_and_die, write_and_die

JOB = "contract-job"
OTHER_JOB = "another-job"
COMMITTABLE_BYTES_MAX = 16 << 10


class SinkContract:
    """What every sink must keep. Two hooks are needed; the others tell the suite about your target."""

    held_by_target: ClassVar[bool] = True
    """The target itself knows what is begun or pre-committed, so that it can be found and ended by anybody. False
    only if rows travel inside the committable: then nothing is left to find, and nothing to end."""

    ends_with_its_client: ClassVar[bool] = False
    """The target rolls back by itself what a process had begun and not pre-committed when it died: nothing is left to
    find then, or not for long."""

    on_its_way_s: ClassVar[float] = 0.0
    """How long rows may be on their way to the target after `write` has returned: only then it knows of them."""

    def make_sink(self, tmp_path: Path) -> Sink:
        """A sink of any kind on a target without rows; called once per test."""
        raise pytest.UsageError(
            f"{type(self).__name__} needs make_sink(self, tmp_path), which returns the sink to test"
        )

    def read_rows(self, sink: Any) -> Sequence[Json]:
        """The rows that a reader of committed data sees now, in any order."""
        raise pytest.UsageError(f"{type(self).__name__} needs read_rows(self, sink), which returns the published rows")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        """Different rows for different numbers, in the shape that the sink's `columns` makes of a job's rows."""
        numbers = range(start, start + count)
        return pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64()), "name": [f"row {n}" for n in numbers]})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        """What `read_rows` gives for the rows of a batch."""
        return batch.to_pylist()  # type: ignore[no-any-return]

    def expire(self, sink: Any, committable: Json) -> bool:
        """Make the target roll back a pre-committed transaction, as by a time-out. False: it never does that."""
        return False

    def refused_rows(self) -> pa.RecordBatch | None:
        """Rows that the target refuses, in the shape of `rows`. None: there are none that the sink knows of in time."""
        return None

    def break_connection(self, sink: Any) -> AbstractContextManager[None] | None:
        """While the returned context is open, the target cannot be reached. None: that cannot be arranged."""
        return None

    def leftovers(self, sink: Any) -> Sequence[str]:
        """What the target still holds for transactions, published or not; must be empty once they are settled."""
        return []

    @pytest.fixture
    def sink(self, tmp_path: Path) -> TransactionalSink[Any]:
        made = lower(self.make_sink(tmp_path), tmp_path / "contract-staging")
        made.check(JobContext())
        return made

    @pytest.fixture
    def scratch(self, tmp_path: Path) -> Path:
        folder = tmp_path / "contract-scratch"
        folder.mkdir()
        return folder

    # -- what is published ------------------------------------------------------------------------------------------

    def test_commit_publishes_exactly_the_rows(self, sink: TransactionalSink[Any]) -> None:
        first = self.prepare(sink, context(slice_=0), self.rows(0, 5), self.rows(5, 3))
        second = self.prepare(sink, context(slice_=1), self.rows(8, 4))
        assert sink.commit_all([first, second], recovering=False) == [Outcome.COMMITTED, Outcome.COMMITTED]
        self.assert_published(sink, self.rows(0, 12))

    def test_a_slice_of_a_batch_is_only_its_own_rows(self, sink: TransactionalSink[Any]) -> None:
        """Arrow batches may be windows into larger ones; what is outside the window must not be written."""
        committable = self.prepare(sink, context(), self.rows(0, 9).slice(2, 3), self.rows(9, 4).slice(3))
        assert sink.commit(committable) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(2, 3), self.rows(12, 1))

    def test_commit_twice_publishes_once(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 5))
        assert sink.commit(committable) is Outcome.COMMITTED
        assert sink.commit(committable).confirmed
        assert sink.recover_and_commit(committable).confirmed
        self.assert_published(sink, self.rows(0, 5))

    def test_nothing_is_visible_before_commit(self, sink: TransactionalSink[Any]) -> None:
        transaction = sink.begin_transaction(context())
        self.assert_published(sink)
        sink.write(transaction, self.rows(0, 5))
        self.assert_published(sink)
        committable = sink.pre_commit(transaction)
        self.assert_published(sink)
        assert sink.commit(committable) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 5))

    def test_an_empty_epoch_publishes_nothing(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 0))
        assert sink.commit(committable).confirmed
        self.assert_published(sink)

    def test_epochs_add_up(self, sink: TransactionalSink[Any]) -> None:
        for epoch in range(3):
            assert sink.commit(self.prepare(sink, context(epoch), self.rows(epoch * 4, 4))) is Outcome.COMMITTED
            sink.settled(JOB, epoch)
        self.assert_published(sink, self.rows(0, 12))

    # -- what is rolled back ----------------------------------------------------------------------------------------

    def test_abort_after_prepare_publishes_nothing(self, sink: TransactionalSink[Any]) -> None:
        sink.abort(self.prepare(sink, context(), self.rows(0, 5)))
        self.assert_published(sink)
        assert self.open(sink) == []

    def test_abort_twice_is_harmless(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 5))
        sink.abort(committable)
        sink.abort(committable)
        assert sink.commit(self.prepare(sink, context(generation=2), self.rows(5, 2))) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(5, 2))

    def test_rollback_in_the_middle_leaves_nothing(self, sink: TransactionalSink[Any]) -> None:
        transaction = sink.begin_transaction(context())
        sink.write(transaction, self.rows(0, 5))
        sink.rollback(transaction)
        self.assert_published(sink)
        assert self.open(sink) == []

    # -- processes that die -----------------------------------------------------------------------------------------

    def test_prepared_by_a_dead_process_commits_from_another(self, sink: TransactionalSink[Any], scratch: Path) -> None:
        committable = prepare_and_die(sink, context(), [self.rows(0, 5), self.rows(5, 2)], scratch)
        self.assert_published(sink)
        assert sink.recover_and_commit(committable).confirmed
        self.assert_published(sink, self.rows(0, 7))

    def test_a_process_that_dies_before_pre_commit_leaves_nothing_but_an_open_transaction(
        self, sink: TransactionalSink[Any], scratch: Path
    ) -> None:
        write_and_die(sink, context(), [self.rows(0, 5)], scratch, self.on_its_way_s)
        self.assert_published(sink)
        found = self.open(sink)
        if self.held_by_target and (found or not self.ends_with_its_client):
            assert [(one.attempt, one.state) for one in found] == [(Attempt(0, 1), TransactionState.BEGUN)]
        for one in found:
            sink.abort(one.committable)
        assert self.open(sink) == []
        self.assert_published(sink)

    def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(
        self, sink: TransactionalSink[Any], scratch: Path
    ) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 5))
        commit_and_die(sink, committable, scratch)
        assert sink.recover_and_commit(committable).confirmed
        self.assert_published(sink, self.rows(0, 5))

    # -- more than one at once --------------------------------------------------------------------------------------

    def test_a_fenced_driver_cannot_publish(self, sink: TransactionalSink[Any]) -> None:
        self.need_held("a late commit of an aborted attempt is stopped by the journal alone")
        late = self.prepare(sink, context(generation=1), self.rows(0, 5))
        for one in self.open(sink):
            sink.abort(one.committable)
        assert sink.commit(self.prepare(sink, context(generation=2), self.rows(0, 5))) is Outcome.COMMITTED
        assert sink.commit(late) in (Outcome.EXPIRED, Outcome.REFUSED)
        self.assert_published(sink, self.rows(0, 5))

    def test_of_two_tasks_for_one_slice_only_the_voted_one_is_published(self, sink: TransactionalSink[Any]) -> None:
        voted = self.prepare(sink, context(task=7), self.rows(0, 5))
        self.prepare(sink, context(task=8), self.rows(0, 5))
        found = self.open(sink)
        if self.held_by_target:
            assert len(found) == 2
            assert {one.state for one in found} == {TransactionState.PRE_COMMITTED}
            assert voted in [one.committable for one in found], "what is kept is recognised by its committable"
        for one in found:
            if one.committable != voted:
                sink.abort(one.committable)
        assert sink.commit(voted) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 5))
        assert self.open(sink) == []

    def test_slices_that_are_pre_committed_together_end_each_on_its_own(self, sink: TransactionalSink[Any]) -> None:
        """One task may have several slices of an epoch."""
        if not sink.together:
            pytest.skip("the slices of a task are pre-committed one by one (together is False)")
        batches = [self.rows(4 * number, 4) for number in range(3)]
        opened = [sink.begin_transaction(context(slice_=number)) for number in range(3)]
        for transaction, batch in zip(opened, batches, strict=True):
            sink.write(transaction, batch)
        first, second, third = (json.loads(json.dumps(one)) for one in sink.pre_commit_all(opened))
        self.assert_published(sink)
        if self.held_by_target:
            assert {one.state for one in self.open(sink)} == {TransactionState.PRE_COMMITTED}
            sink.abort(second)
        assert sink.commit_all([first, third], recovering=False) == [Outcome.COMMITTED, Outcome.COMMITTED]
        self.assert_published(sink, batches[0], batches[2])
        assert self.open(sink) == []

    def test_the_transactions_of_other_jobs_are_theirs(self, sink: TransactionalSink[Any]) -> None:
        """Two jobs with the same epoch, generation and task may share a target."""
        mine = self.prepare(sink, context(), self.rows(0, 5))
        other = self.prepare(sink, context(job=OTHER_JOB), self.rows(5, 5))
        assert len(self.open(sink)) == (1 if self.held_by_target else 0)
        sink.abort(mine)
        sink.settled(JOB, 9)
        assert sink.commit(other) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(5, 5))

    # -- rows that the target refuses -------------------------------------------------------------------------------

    def test_refused_rows_fail_the_slice_or_are_given_back(self, sink: TransactionalSink[Any]) -> None:
        """Without dead letters nothing is published; with them all others are."""
        bad = self.refused_rows()
        if bad is None:
            pytest.skip("this target takes every row (no refused_rows hook)")
        good = self.rows(0, 4)
        mixed = _joined(good.slice(0, 1), bad, good.slice(1))
        transaction = sink.begin_transaction(context())
        with pytest.raises(RowRefusedError):
            self.write_through(sink, transaction, mixed)
        sink.rollback(transaction)
        self.assert_published(sink)
        transaction = sink.begin_transaction(replace(context(generation=2), dead_letters=True))
        refused = sink.write(transaction, mixed) or ()
        assert [one.place for one in refused] == list(range(1, 1 + bad.num_rows))
        assert all(one.why for one in refused)
        assert sink.commit(json.loads(json.dumps(sink.pre_commit(transaction)))) is Outcome.COMMITTED
        self.assert_published(sink, good)

    def test_a_slice_of_which_every_row_is_refused_publishes_nothing(self, sink: TransactionalSink[Any]) -> None:
        bad = self.refused_rows()
        if bad is None:
            pytest.skip("this target takes every row (no refused_rows hook)")
        transaction = sink.begin_transaction(replace(context(), dead_letters=True))
        assert len(sink.write(transaction, bad) or ()) == bad.num_rows
        assert sink.commit(json.loads(json.dumps(sink.pre_commit(transaction)))).confirmed
        self.assert_published(sink)

    # -- servers that forget, connections that break ----------------------------------------------------------------

    def test_an_expired_transaction_says_so_and_is_never_published(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 5))
        if not self.expire(unwrap(sink), committable):
            pytest.skip("this target never rolls back what is pre-committed (no expire hook)")
        assert sink.commit(committable) is Outcome.EXPIRED
        assert sink.recover_and_commit(committable) is Outcome.EXPIRED
        self.assert_published(sink)
        assert sink.commit(self.prepare(sink, context(generation=2), self.rows(0, 5))) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 5))

    def test_a_broken_connection_is_asked_again_not_failed(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 5))
        broken = self.break_connection(unwrap(sink))
        if broken is None:
            pytest.skip("no connection that could break (no break_connection hook)")
        with broken:
            assert sink.commit(committable).unsettled
        assert sink.recover_and_commit(committable).confirmed
        self.assert_published(sink, self.rows(0, 5))

    # -- values and leftovers ---------------------------------------------------------------------------------------

    def test_a_committable_is_small_json(self, sink: TransactionalSink[Any]) -> None:
        committable = self.prepare(sink, context(), self.rows(0, 50))
        text = json.dumps(committable)
        assert len(text) <= COMMITTABLE_BYTES_MAX
        assert json.loads(text) == committable
        assert sink.commit(json.loads(text)) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 50))

    def test_the_sink_survives_pickling(self, sink: TransactionalSink[Any]) -> None:
        from pyspark import cloudpickle

        copy = cloudpickle.loads(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
        assert copy.target == sink.target
        assert sink.commit(self.prepare(copy, context(), self.rows(0, 5))) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 5))

    def test_settled_frees_everything_but_published_rows(self, sink: TransactionalSink[Any]) -> None:
        committed = self.prepare(sink, context(epoch=3, task=1), self.rows(0, 5))
        self.prepare(sink, context(epoch=3, task=2), self.rows(0, 5))
        assert sink.commit(committed) is Outcome.COMMITTED
        for one in self.open(sink):
            sink.abort(one.committable)
        for _ in range(2):
            sink.settled(JOB, 3)
            assert self.open(sink) == []
            assert list(self.leftovers(unwrap(sink))) == []
            self.assert_published(sink, self.rows(0, 5))

    def test_settled_leaves_later_epochs_alone(self, sink: TransactionalSink[Any]) -> None:
        later = self.prepare(sink, context(epoch=4), self.rows(0, 5))
        sink.settled(JOB, 3)
        assert sink.commit(later) is Outcome.COMMITTED
        self.assert_published(sink, self.rows(0, 5))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def prepare(self, sink: TransactionalSink[Any], where: SliceContext, *batches: pa.RecordBatch) -> Json:
        """Executor side of one slice. The committable goes through JSON, as it does on its way to the journal."""
        transaction = sink.begin_transaction(where)
        for batch in batches:
            sink.write(transaction, batch)
        return json.loads(json.dumps(sink.pre_commit(transaction)))

    def write_through(self, sink: TransactionalSink[Any], transaction: Any, batch: pa.RecordBatch) -> None:
        """Some targets say only at the end what they refuse."""
        sink.write(transaction, batch)
        sink.pre_commit(transaction)

    def open(self, sink: TransactionalSink[Any]) -> list[OpenTransaction]:
        return list(sink.open_transactions(JOB))

    def assert_published(self, sink: TransactionalSink[Any], *batches: pa.RecordBatch) -> None:
        """A reader sees these rows, each once, and no others."""
        expected = [row for batch in batches for row in self.as_read(batch)]
        found = list(self.read_rows(unwrap(sink)))
        assert sorted(map(repr, found)) == sorted(map(repr, expected))

    def need_held(self, reason: str) -> None:
        if not self.held_by_target:
            pytest.skip(f"rows travel inside the committable: {reason}")


def context(epoch: int = 0, generation: int = 1, slice_: int = 0, task: int = 7, job: str = JOB) -> SliceContext:
    return SliceContext(job, Attempt(epoch, generation), "out", slice_, task)


def _joined(*batches: pa.RecordBatch) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def unwrap(sink: TransactionalSink[Any]) -> Any:
    """The sink as its author made it."""
    return sink.sink if isinstance(sink, StagedSink) else sink
