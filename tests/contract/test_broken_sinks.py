"""Sinks that are broken on purpose: the shipped contract must convict each of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import test_sinks

from tallystick.records import Json, Outcome
from tallystick.sinks import Files, Memory
from tallystick.sinks.base import JobContext
from tallystick.sinks.files.transaction import Transaction as FileTransaction
from tallystick.sinks.memory import Transaction as MemoryTransaction
from tallystick.testing import SinkContract


class CommitsTwice(Memory):
    """Broken: a repeated commit publishes again."""

    def commit(self, committable: Json) -> Outcome:
        number = len(self.rows())
        return super().commit({**committable, "name": f"{committable['name']}-{number}"})


class PublishesTooEarly(Memory):
    """Broken: rows are visible before the decision."""

    def pre_commit(self, transaction: MemoryTransaction) -> Json:
        committable = super().pre_commit(transaction)
        self.commit(committable)
        return committable


class ForgetsToAbort(Files):
    """Broken: what was aborted can still be committed."""

    def abort(self, committable: Json) -> None:
        del committable


class RenamesNothing(Files):
    """Broken: says that it committed, and did nothing."""

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return [Outcome.COMMITTED for _ in committables]


class KeepsRowsInMemory(Files):
    """Broken: pre-commit names the transaction, but does not make it durable."""

    def pre_commit(self, transaction: FileTransaction[Path]) -> Json:
        return self.committable(transaction)


class HoldsAHandle(Files):
    """Broken: cannot be sent to an executor."""

    def check(self, job: JobContext) -> None:
        super().check(job)
        self.handle = (self.path / ".handle").open("w")


class SaysAlwaysYes(Files):
    """Broken: an expired transaction is reported as committed."""

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        super().commit_all(committables, recovering)
        return [Outcome.ALREADY_COMMITTED for _ in committables]


class NeverSettles(Files):
    """Broken: never frees what it holds."""

    def settled(self, job_id: str, epoch: int) -> None:
        del job_id, epoch


CONVICTIONS: list[tuple[type[Any], type[SinkContract], str]] = [
    (CommitsTwice, test_sinks.TestMemory, "test_commit_twice_publishes_once"),
    (PublishesTooEarly, test_sinks.TestMemory, "test_nothing_is_visible_before_commit"),
    (PublishesTooEarly, test_sinks.TestMemory, "test_abort_after_prepare_publishes_nothing"),
    (ForgetsToAbort, test_sinks.TestParquet, "test_abort_after_prepare_publishes_nothing"),
    (ForgetsToAbort, test_sinks.TestParquet, "test_a_fenced_driver_cannot_publish"),
    (RenamesNothing, test_sinks.TestParquet, "test_commit_publishes_exactly_the_rows"),
    (KeepsRowsInMemory, test_sinks.TestParquet, "test_of_two_tasks_for_one_slice_only_the_voted_one_is_published"),
    (HoldsAHandle, test_sinks.TestParquet, "test_the_sink_survives_pickling"),
    (SaysAlwaysYes, test_sinks.TestParquet, "test_an_expired_transaction_says_so_and_is_never_published"),
    (NeverSettles, test_sinks.TestParquet, "test_settled_frees_everything_but_published_rows"),
]


@pytest.mark.parametrize(
    ("broken", "contract", "test"), CONVICTIONS, ids=[f"{b.__name__}-{t[5:30]}" for b, _, t in CONVICTIONS]
)
def test_the_contract_convicts_broken_sinks(
    broken: type[Any], contract: type[SinkContract], test: str, tmp_path: Path
) -> None:
    """The same test passes for the sink that is not broken, so it is the defect that convicts."""
    suite = contract()
    good, bad = suite.make_sink(tmp_path / "good"), broken(str(tmp_path / "bad"))
    for sink in (good, bad):
        sink.check(JobContext())
    getattr(suite, test)(good)
    with pytest.raises(pickle.PicklingError if broken is HoldsAHandle else AssertionError):
        getattr(suite, test)(bad)
