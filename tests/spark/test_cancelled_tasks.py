"""A task that Spark cancels while it pre-commits: the driver rolls back when it is over, not before."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

import tallystick as ts
from tallystick.errors import PrepareError, SinkError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.records import Json

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

LATE_S = 1.0
"""Long after Spark has told the driver of the failure, and before it kills the worker."""
TOO_LATE_S = 60.0
"""Longer than Spark lets a worker go on."""


class OneLateOneRefused(ts.sinks.Files):
    """Slice 1 fails when slice 0 is about to pre-commit, which takes its time over it."""

    def pre_commit(self, transaction: Any) -> Json:
        marks = Path(self.path).parent
        if transaction.context.slice == 1:
            until((marks / "began").exists)
            raise SinkError("slice 1 fails")
        (marks / "began").touch()
        time.sleep(float((marks / "late_s").read_text()))
        committable = super().pre_commit(transaction)
        (marks / "pre-committed").touch()
        return committable


def until(true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("late_s", [LATE_S, TOO_LATE_S])
def test_what_a_cancelled_task_pre_commits_late_is_not_left_behind(
    spark: SparkSession, tmp_path: Path, late_s: float
) -> None:
    (tmp_path / "late_s").write_text(str(late_s))
    sink = OneLateOneRefused(tmp_path / "out")
    source = ts.sources.Collection([{"id": number} for number in range(20)], partitions=2)
    with pytest.raises(PrepareError, match="slice 1 fails"):
        ts.Job("late", source=source, sink=sink, checkpoint=tmp_path / "checkpoint").run(spark, available_now=True)
    assert (tmp_path / "pre-committed").exists() == (late_s == LATE_S)
    owner = Journal(PosixStore(tmp_path / "checkpoint" / "tallystick")).identity()
    assert owner is not None
    assert list(sink.open_transactions(owner.id)) == []
