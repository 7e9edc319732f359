"""Kill a real Kafka to Kafka job with SIGKILL at every point of the protocol, restart it, compare input and output.

Run K is killed at point K of epoch K+1 and the next run takes over. One reader of committed records reads all along,
another one at the end: both must have seen the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka_campaign import Campaign, Findings, assert_exactly_once
from killed_job import epochs_for, finish, note
from kills import KILLS

from real_servers import Elsewhere
from tallystick.killpoints import ONCE, POINTS
from tallystick.servers import Kafka
from tallystick.sinks.kafka.driver import SWEEP_EVERY_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

WEAKER_MODES_KILLS = ("inside-commit@1",)
SLICES = 5
"""Of the job whose workers are killed: two or three transactions for each of its two tasks."""
NAMES_AT_MOST = 16
"""Two workers, each with a few names in use, and as many for workers that outlive their driver by a moment. Not one per
epoch, and not one per kill."""


def killed_at_each(
    kafka: Kafka | Elsewhere,
    folder: Path,
    kills: Sequence[str],
    mode: str = "exactly-once",
    counts: bool = False,
    slices: int = 0,
) -> Findings:
    campaign = Campaign(kafka.address, folder, epochs_for(kills), mode=mode, counts=counts, slices=slices)
    with campaign.follower() as follower:
        campaign.killed_at_each(kills)
        found = campaign.findings(follower)
    print("\n" + found.row(f"{mode}, {'count' if counts else 'pass-through'}", campaign.runs, len(kills)))
    return found


def test_the_matrix_has_every_kill_point() -> None:
    assert {kill.split("@")[0] for kills in KILLS.values() for kill in kills} == set(POINTS)


@pytest.mark.parametrize("where", KILLS)
def test_exactly_once_neither_loses_nor_repeats_at_any_point(
    kafka: Kafka | Elsewhere, tmp_path: Path, where: str
) -> None:
    slices = 0 if where == "driver" else SLICES
    found = killed_at_each(kafka, tmp_path / "job", KILLS[where], counts=where == "driver", slices=slices)
    note(len(KILLS[where]), ["kafka"], {"kafka": found.tally})
    assert_exactly_once(found)
    assert found.aborted > 0, "no attempt was rolled back: the kills hit nothing"
    assert found.names <= NAMES_AT_MOST


def test_at_least_once_repeats_and_never_loses(kafka: Kafka | Elsewhere, tmp_path: Path) -> None:
    found = killed_at_each(kafka, tmp_path / "job", WEAKER_MODES_KILLS, "at-least-once")
    assert found.tally.lost == found.tally.phantom == 0
    assert found.tally.repeated > 0, "a test that shows no repeats proves nothing about exactly-once"
    assert found.same_for_both_readers
    assert not found.still_open


def test_at_most_once_loses_and_never_repeats(kafka: Kafka | Elsewhere, tmp_path: Path) -> None:
    found = killed_at_each(kafka, tmp_path / "job", WEAKER_MODES_KILLS, "at-most-once")
    assert found.tally.repeated == found.tally.phantom == 0
    assert found.tally.lost > 0, "a test that shows no losses proves nothing about exactly-once"
    assert found.same_for_both_readers
    assert not found.out_of_order
    assert not found.still_open


def test_a_killed_worker_is_retried_without_loss_or_repeat(kafka: Kafka | Elsewhere, tmp_path: Path) -> None:
    """Only the Python worker dies, after it pre-committed: Spark runs the task again in the same attempt. The
    transaction that nobody voted for goes when the driver next looks for leftovers."""
    once, held = tmp_path / "once", "before-settle@3"
    campaign = Campaign(kafka.address, tmp_path / "job", 4, master="local[2,4]", holds=(held,))
    with campaign.follower() as follower:
        with campaign.running("after-pre-commit@1:worker", **{ONCE: str(once)}) as process:
            campaign.await_hold(held, process)
            time.sleep(SWEEP_EVERY_S)
            campaign.release(held)
            finish(process)
        found = campaign.findings(follower)
    print("\n" + found.row("exactly-once, one worker killed", campaign.runs, 1))
    assert once.exists(), "no worker was killed"
    assert_exactly_once(found)
    assert found.aborted > 0, "the killed worker had written nothing"


def test_a_worker_killed_in_the_last_epoch_does_not_keep_readers_waiting(
    kafka: Kafka | Elsewhere, tmp_path: Path
) -> None:
    campaign = Campaign(kafka.address, tmp_path / "job", 2, master="local[2,4]")
    with campaign.follower() as follower:
        campaign.run("after-pre-commit@1:worker", **{ONCE: str(tmp_path / "once")})
        found = campaign.findings(follower)
    assert (tmp_path / "once").exists(), "no worker was killed"
    assert_exactly_once(found)
    assert found.aborted > 0, "the killed worker had written nothing"
