"""Every source and sink that talks to a server takes part in the prover: bounded campaigns on real servers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tallystick.prover.campaign import Order, Progress, prove
from tallystick.prover.checkers import Verdict
from tallystick.prover.faults import Schedule
from tallystick.prover.faults.kill import KillAt
from tallystick.prover.report.result import Result

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]

JOBS = Path(__file__).with_name("prove_connectors.py")
EXACTLY_ONCE = ("databases", "search", "lake", "kinesis_to_postgresql", "received", "received_framed")
KILLS = 12
WORKERS = 5


SENT_TWICE = (KillAt("inside-commit", 1),), (KillAt("after-commit", 2),), (KillAt("before-return", 4),)


def proven(job: str, folder: Path, replay: Schedule | None = None) -> Result:
    def watch(progress: Progress) -> None:
        time.sleep(0.1)

    order = Order(f"{JOBS}:{job}", kills=KILLS, workers=WORKERS, seed=41, replay=replay)
    result = prove(order, folder, watch)
    result.note()
    print(f"\n{job}: {json.dumps(result.to_json())}")
    return result


@pytest.mark.parametrize("job", EXACTLY_ONCE)
def test_exactly_once(tmp_path: Path, job: str) -> None:
    result = proven(job, tmp_path)
    assert result.verdict is Verdict.VALID, result.to_json()
    assert not any(result.checks.values())
    assert result.kills >= KILLS
    assert bool(result.notes) == (job in ("received", "received_framed", "search")), result.notes


def test_what_is_sent_at_least_once_and_what_another_job_makes_of_it(tmp_path: Path) -> None:
    """The stream and the socket show repeats; through the Kinesis source there are none."""
    result = proven("sends", tmp_path, Schedule(1, SENT_TWICE, epochs=7))
    assert result.verdict is Verdict.INVALID, "a campaign without repeats proves nothing about the marks"
    assert result.as_promised
    assert "repeated" in result.convicted["kinesis"]
    assert "repeated" in result.convicted["socket"]
    assert "kinesis, read by the kinesis source" not in result.convicted
    assert any("exactly-once" in note for note in result.notes)
    assert any("at-least-once" in note for note in result.notes)
