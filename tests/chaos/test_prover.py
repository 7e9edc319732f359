"""The prover, proven: it acquits what is right, convicts what is wrong by the right checker, and knows its limits."""

from __future__ import annotations

import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from real_servers import need
from tallystick.cli import main
from tallystick.prover.campaign import Order, Progress, prove
from tallystick.prover.checkers import Verdict
from tallystick.prover.faults import Fault, Schedule
from tallystick.prover.faults.downtime import Downtime
from tallystick.prover.faults.draw import EXPIRED_S
from tallystick.prover.faults.kill import KillAt, KillExecutor, KillLater
from tallystick.prover.faults.machine import Clock, DiskFull, clock_library
from tallystick.prover.faults.pause import Pause, Takeover
from tallystick.prover.faults.servers import Network, ServerDown
from tallystick.prover.history import History
from tallystick.prover.report.result import Result

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
Life = tuple[Fault, ...]


def run(job: str, folder: Path, *lives: Life, epochs: int = 5) -> Result:
    """A campaign of one round with exactly these faults."""
    folder.mkdir(exist_ok=True)
    result = prove(Order(str(HERE / job), replay=Schedule(1, lives, epochs)), folder, watch)
    print(f"\n{job}: {json.dumps(result.to_json())}")
    if not result.rounds or result.why:
        print(f"{result.why}\n{result.needed}")
    return result


def watch(progress: Progress) -> None:
    time.sleep(0.1)


def acquitted(result: Result, kills: int) -> None:
    assert result.verdict is Verdict.VALID, result.to_json()
    assert not any(result.checks.values())
    assert result.kills >= kills


def test_broken_sinks_are_convicted_each_by_the_right_checker(tmp_path: Path) -> None:
    """All in one job, together with a sink that is right, and is acquitted."""
    result = run("broken_job.py", tmp_path, (KillAt("before-decide", 1),), (KillAt("after-decide", 3),))
    assert result.verdict is Verdict.INVALID
    assert result.as_promised is False
    assert "right" not in result.convicted
    assert "dirty" in result.convicted["early"]
    assert result.convicted["twice"] == ["repeated"]
    assert result.convicted["half"] == ["lost", "torn"]
    assert result.convicted["scraps"] == ["phantom"]
    assert result.kills == 2


def test_weaker_modes_are_convicted_of_what_they_do_and_of_nothing_worse(tmp_path: Path) -> None:
    """Side by side: at-least-once repeats what it had published, at-most-once loses what it had decided."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        at_least = pool.submit(
            run, "prove_jobs.py:at_least_once", tmp_path / "a", (KillAt("after-commit", 1),), epochs=4
        )
        at_most = pool.submit(run, "prove_jobs.py:at_most_once", tmp_path / "b", (KillAt("after-decide", 1),), epochs=4)
    repeats, losses = at_least.result(), at_most.result()
    assert repeats.convicted == {"files": ["repeated"]}
    assert losses.verdict is Verdict.INVALID
    assert "lost" in losses.convicted["files"]
    assert not {"repeated", "phantom", "dirty"} & set(losses.convicted["files"])
    assert repeats.as_promised is losses.as_promised is True


@pytest.mark.slow
def test_a_job_with_rules_is_proven_with_its_own_control_stream(tmp_path: Path) -> None:
    """A rule comes with each epoch: a row that was made with those of another one is a phantom, and its own is lost."""
    result = run("prove_jobs.py:with_rules", tmp_path, (KillAt("after-pre-commit", 1),), (KillAt("after-decide", 3),))
    acquitted(result, kills=2)


def test_a_job_on_kafka_and_files_outlives_everything(tmp_path: Path) -> None:
    """A bounded campaign with a fault of every kind that needs no long waits, on a real broker behind a proxy."""
    result = run(
        "prove_jobs.py:two_outputs",
        tmp_path,
        (
            KillAt("after-pre-commit", 1, worker=True),
            KillAt("before-begin", 2, worker=True),
            KillAt("inside-commit", 3),
        ),
        (Network("kafka", "half-open", 0.2, 1.0), KillAt("before-return", 12)),
        (ServerDown("kafka", 0.2, 1.0), KillLater(0.5, worker=True)),
        epochs=30,
    )
    acquitted(result, kills=4)
    assert set(result.checks) == {"lost", "repeated", "phantom", "dirty", "torn", "reordered", "stuck"}
    assert {"server-down", "network"} <= set(result.faults)


@pytest.mark.slow
def test_pauses_takeovers_and_a_wrong_clock(tmp_path: Path) -> None:
    need(clock_library() is not None, "a C compiler: apt-get install gcc")
    result = run(
        "prove_jobs.py:two_outputs",
        tmp_path,
        (Pause(0.3, 3.0), KillLater(3.8)),
        (Clock(-86_400), KillLater(1.0)),
        (Clock(3_600), KillLater(1.0)),
        (Network("kafka", "cut", 0.3, 1.0), KillLater(2.0)),
        (Takeover(0.3),),
        epochs=80,
    )
    acquitted(result, kills=3)
    assert {"pause", "clock", "network", "takeover"} <= set(result.faults)


@pytest.mark.slow
def test_executors_of_a_cluster_are_killed(tmp_path: Path) -> None:
    """Spark goes on without an executor, and so the job comes to its end in that life, unless the driver dies, too."""
    lives: tuple[Life, ...] = (
        (
            KillExecutor(0.0),
            KillAt("after-write", 2, worker=True),
            KillAt("before-begin", 4, executor=True),
            KillAt("after-pre-commit", 6, executor=True),
            KillAt("after-decide", 12),
        ),
        (
            KillExecutor(0.0, 1),
            KillAt("after-write", 14, executor=True),
            KillAt("before-pre-commit", 16, executor=True),
            KillAt("before-return", 20),
        ),
    )
    order = Order(str(HERE / "prove_jobs.py:files_to_files"), replay=Schedule(1, lives, 30), cluster=True)
    result = prove(order, tmp_path, watch)
    print(f"\n{json.dumps(result.to_json())}")
    acquitted(result, kills=9)
    assert result.faults["kill-executor"] == 6, "at each point that a worker reaches, and one at any time in each life"
    assert result.faults["kill-driver"] == 2
    assert not result.missed


@pytest.mark.slow
def test_a_workload_at_a_rate(tmp_path: Path) -> None:
    """Forty records a second, so an epoch a second; the job is stopped when the last one is over.

    Spark starts epochs at whole seconds of its clock. The two that come after the restart are late, and start at once;
    from then on there is a second between them, where a job without a rate takes a fifth of that.
    """
    lives: tuple[Life, ...] = ((KillAt("after-decide", 2),),)
    order = Order(str(HERE / "prove_jobs.py:files_to_files"), replay=Schedule(1, lives, 8), rate=40.0)
    result = prove(order, tmp_path, watch)
    acquitted(result, kills=1)
    history = History.load(tmp_path / "round-1" / "history.jsonl")
    commits = {decided.epoch: decided.when for decided in history.decisions if decided.decision == "COMMIT"}
    last = [commits[epoch] for epoch in (4, 5, 6, 7)]
    assert all(later - earlier > 0.5 for earlier, later in itertools.pairwise(last)), last


@pytest.mark.slow
def test_transactions_that_expired_are_written_again(tmp_path: Path) -> None:
    result = run("prove_jobs.py:two_outputs", tmp_path, (KillAt("after-decide", 2),), (Downtime(EXPIRED_S),), epochs=5)
    acquitted(result, kills=1)


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "root, to mount a small disk")
    result = run("prove_jobs.py:files_to_files", tmp_path, (DiskFull(0.2, 2.0),), epochs=30)
    acquitted(result, kills=0)
    assert result.faults["disk-full"] == 1
    assert "No space left on device" in (tmp_path / "round-1" / "life-1.log").read_text()


def test_a_job_that_is_not_deterministic_gets_no_verdict(tmp_path: Path) -> None:
    result = run("prove_jobs.py:dreaming", tmp_path, (KillAt("after-decide", 1),), epochs=2)
    assert result.verdict is Verdict.UNKNOWN
    assert "the job is not deterministic" in result.why
    assert "no random numbers" in result.needed


def test_an_output_that_cannot_be_read_back_gets_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before anything is started, and never green."""
    with pytest.raises(SystemExit) as left:
        main(["prove", f"{HERE / 'prove_jobs.py'}:in_memory", "--json", "--keep", str(tmp_path / "proof")])
    assert left.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "unknown"
    assert "knows no reader for the kind 'memory'" in told["why"]
    assert "tallystick.prover.Reader" in told["needed"]


@pytest.mark.slow
@pytest.mark.parametrize("job", ["prove_jobs.py:files_to_files", "prove_jobs.py:two_outputs"])
@pytest.mark.parametrize("faults", ["kill-points", "all"])
def test_a_long_campaign(tmp_path: Path, job: str, faults: str) -> None:
    """As a person would run it: every kill point, and whatever else the seed draws."""
    seed = int(time.time()) % 100_000
    order = Order(str(HERE / job), faults, kills=60, seed=seed, workers=6)
    result = prove(order, tmp_path, watch)
    print(f"\nseed {seed}: {json.dumps(result.to_json())}")
    acquitted(result, kills=1)
