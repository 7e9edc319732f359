"""A real cluster loses workers, executors and drivers, and runs tasks twice: no row is lost, none is repeated.

Every test also asks Spark's event log whether the fault happened: a run without a retry proves nothing.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cluster_evidence import SparkHistory, published_rows, publishers, reached, still_staged
from cluster_job import Fault, Plan, expected

from real_servers import started
from tallystick.errors import SetupError
from tallystick.killpoints import ONCE
from tallystick.prover import JobProcess, tally
from tallystick.servers.spark_cluster import Executor, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(400)]

JOB = str(Path(__file__).with_name("cluster_job.py"))
RUN_TIMEOUT_S = 150
FAULT_TIMEOUT_S = 90


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with started(SparkCluster(tmp_path_factory.mktemp("spark"))) as server:
        yield server
    assert server.executors() == []


@pytest.fixture
def cluster(shared_cluster: SparkCluster) -> SparkCluster:
    """Both workers alive, and nobody on them."""
    shared_cluster.heal()
    until(lambda: not shared_cluster.executors(), "the executors of the last job to end")
    return shared_cluster


class Run:
    """A driver in a process of its own, and what the test needs to know of its tasks while it runs."""

    def __init__(self, cluster: SparkCluster, folder: Path, plan: Plan, kill: str | None = None) -> None:
        self.cluster, self.folder, self.plan = cluster, folder, plan
        for name in ("marks", "events"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        arguments = [JOB, str(folder), cluster.address, plan.to_json()]
        self.process = JobProcess(arguments, folder / "log", kill, {ONCE: str(folder / "marks" / "killed-once")})

    def await_fault(self, fault: Fault) -> dict[str, object]:
        """Wait until it hit a task: which one, its process, and the application and number of its executor."""
        mark = self.folder / "marks" / f"{fault}.happened"
        until(lambda: mark.exists() or not self.process.running(), f"{fault} to happen", self.process)
        assert mark.exists(), f"the job ended before {fault}:\n{self.process.tail()}"
        value: dict[str, object] = json.loads(mark.read_text())
        return value

    def executor_of(self, fault: Fault) -> Executor:
        name = self.await_fault(fault)["executor"]
        found = [entry for entry in self.cluster.executors() if [entry.app_id, entry.executor_id] == name]
        assert len(found) == 1, f"{name} is not one of {self.cluster.executors()}"
        return found[0]

    def release(self, fault: Fault) -> None:
        (self.folder / "marks" / f"{fault}.released").touch()

    def finish(self) -> None:
        ended = self.process.wait(RUN_TIMEOUT_S)
        assert ended.status == 0, self.process.tail()


@contextmanager
def running(cluster: SparkCluster, folder: Path, plan: Plan, kill: str | None = None) -> Iterator[Run]:
    run = Run(cluster, folder, plan, kill)
    try:
        yield run
    finally:
        run.process.kill()


def until(true: Callable[[], bool], what: str, process: JobProcess | None = None) -> None:
    deadline = time.monotonic() + FAULT_TIMEOUT_S
    while not true():
        if time.monotonic() > deadline:
            tail = "" if process is None else f":\n{process.tail()}"
            pytest.fail(f"waited {FAULT_TIMEOUT_S} s in vain for {what}{tail}")
        time.sleep(0.05)


def assert_exact(folder: Path, plan: Plan) -> None:
    """Nothing lost, nothing repeated, and of every slice one task's files are published."""
    counted = tally(expected(plan), published_rows(folder))
    assert counted.exact, counted
    assert counted.expected > 0
    for epoch in range(plan.epochs):
        for slice_ in (0, 1):
            assert len(publishers(folder, epoch, slice_)) == 1, (epoch, slice_)


def assert_staged_twice(folder: Path, epoch: int, slice_: int) -> None:
    """Several tasks pre-committed this slice, one is published, and nothing is left of the others."""
    staged = reached(folder, "pre-committed", epoch, slice_)
    assert len(staged) >= 2, staged
    published = publishers(folder, epoch, slice_)
    assert published < staged
    assert not staged & still_staged(folder)


def test_failed_tasks_lost_executors_and_lost_workers(cluster: SparkCluster, tmp_path: Path) -> None:
    raised = Fault(2, 0, "pre-committed", "raise")
    with_executor = Fault(3, 1, "written", "hold")
    with_worker = Fault(4, 0, "written", "hold")
    plan = Plan(epochs=6, faults=(raised, with_executor, with_worker))
    with running(cluster, tmp_path, plan, "after-pre-commit@1:worker") as run:
        lost = run.executor_of(with_executor)
        cluster.kill_executor(lost)
        deserted = run.executor_of(with_worker)
        cluster.kill_worker(deserted.worker)
        run.finish()
    assert cluster.workers_alive() == 1, "the job was to go on with one worker"
    assert_exact(tmp_path, plan)

    assert (tmp_path / "marks" / "killed-once").exists(), "no Python worker was killed"
    assert_staged_twice(tmp_path, 1, 0 if len(reached(tmp_path, "pre-committed", 1, 0)) > 1 else 1)
    assert_staged_twice(tmp_path, 2, 0)
    for fault in (with_executor, with_worker):
        assert len(reached(tmp_path, "written", fault.epoch, fault.slice)) >= 2
    history = SparkHistory(tmp_path)
    print(f"\n{history.task_endings()}, executors lost: {history.executors_lost()}")
    assert f"{raised} was asked for" in history.failure_texts()
    assert "Python worker exited unexpectedly" in history.failure_texts()
    assert history.task_endings()["ExecutorLostFailure"] >= 2
    assert history.executors_lost() >= {lost.executor_id, deserted.executor_id}


def test_of_two_copies_of_a_slow_task_one_is_published(cluster: SparkCluster, tmp_path: Path) -> None:
    slow = Fault(2, 1, "pre-committed", "hold")
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "2s",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    plan = Plan(epochs=5, counts=True, faults=(slow,), conf=speculation)
    with running(cluster, tmp_path, plan) as run:
        loser = str(run.await_fault(slow)["task"])
        run.finish()
    assert_exact(tmp_path, plan)
    assert_staged_twice(tmp_path, 2, 1)
    (winner,) = publishers(tmp_path, 2, 1)
    assert winner != loser
    history = SparkHistory(tmp_path)
    print(f"\n{history.task_endings()}, copies that won: {history.speculative_winners()}")
    assert int(winner.split("-")[2]) in history.speculative_winners()


def test_a_stage_that_runs_again_publishes_once(cluster: SparkCluster, tmp_path: Path) -> None:
    """An executor dies with its part of the shuffle while both slices are being written: Spark computes that part
    again, and runs both slices again beside the one that still goes on."""
    goes_on, dies = Fault(2, 0, "pre-committed", "hold"), Fault(2, 1, "written", "hold")
    plan = Plan(epochs=5, counts=True, faults=(goes_on, dies))
    with running(cluster, tmp_path, plan) as run:
        first = str(run.await_fault(goes_on)["task"])
        lost = run.executor_of(dies)
        cluster.kill_executor(lost)
        run.finish()
    assert_exact(tmp_path, plan)
    assert_staged_twice(tmp_path, 2, 0)
    assert publishers(tmp_path, 2, 0) != {first}
    assert len(reached(tmp_path, "written", 2, 1)) >= 2
    history = SparkHistory(tmp_path)
    print(f"\n{history.task_endings()}, stages run again: {history.stages_run_again()}")
    assert history.task_endings()["FetchFailed"] >= 1
    assert history.stages_run_again() & history.shuffle_map_stages(), "no map stage ran again"
    assert history.stages_run_again() - history.shuffle_map_stages(), "no result stage ran again"
    assert lost.executor_id in history.executors_lost()


def test_a_task_that_outlives_its_driver_publishes_nothing(cluster: SparkCluster, tmp_path: Path) -> None:
    """The driver is killed in epoch 2. One of its tasks wakes up when the next driver is at epoch 4, and stages."""
    until_both, late = Fault(2, 0, "written", "hold"), Fault(2, 1, "begin", "outlive")
    later = Fault(4, 0, "written", "hold")
    plan = Plan(epochs=7, counts=True, faults=(until_both, late, later))
    zombie: dict[str, object] = {}
    try:
        with running(cluster, tmp_path, plan, "after-pre-commit@2") as run:
            zombie = run.await_fault(late)
            run.await_fault(until_both)
            run.release(until_both)
            ended = run.process.wait(RUN_TIMEOUT_S)
            assert ended.killed, run.process.tail()
        with running(cluster, tmp_path, plan) as run:
            run.await_fault(later)
            assert alive(zombie), "the task of the first driver did not outlive it"
            run.release(late)
            until(lambda: not alive(zombie), "the late task to end")
            assert {zombie["task"]} < reached(tmp_path, "pre-committed", 2, 1)
            assert zombie["task"] in still_staged(tmp_path)
            run.release(later)
            run.finish()
    finally:
        end(zombie)
    assert_exact(tmp_path, plan)
    assert_staged_twice(tmp_path, 2, 0)
    assert_staged_twice(tmp_path, 2, 1)


def test_a_lost_worker_is_noticed_and_replaced(cluster: SparkCluster) -> None:
    cluster.kill_worker(0)
    until(lambda: cluster.workers_alive() == 1, "the master to notice")
    with pytest.raises(SetupError, match="does not run"):
        cluster.kill_worker(0)
    cluster.heal()
    assert cluster.workers_alive() == 2
    assert SparkCluster(cluster.folder).running, "another process finds it by its folder"


def alive(task: dict[str, object]) -> bool:
    """False also for one that ended and that nobody has asked for its status."""
    try:
        return bool(psutil.Process(int(str(task["pid"]))).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(task: dict[str, object]) -> None:
    if task and alive(task):
        os.kill(int(str(task["pid"])), signal.SIGKILL)
