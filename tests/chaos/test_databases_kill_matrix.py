"""Kill a job that writes to PostgreSQL and Redis in one epoch, at every point of the protocol, and count what is there.

Run K is killed at point K of epoch K+1 and the next run takes over. Rows appended to a table, counters that are
incremented and entries of a stream would all show a row that came twice; a table with keys shows one that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from databases_campaign import Campaign, row
from killed_job import epochs_for, note
from kills import IN_SHORT, KILLS, MATRIX

from tallystick.killpoints import ONCE, POINTS
from tallystick.prover import Tally
from tallystick.servers import PostgreSQL, Redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

WEAKER_MODES_KILLS = ("inside-commit@1",)


def killed_at_each(
    postgresql: PostgreSQL, redis: Redis, folder: Path, kills: Sequence[str], mode: str = "exactly-once"
) -> tuple[Campaign, Tally]:
    campaign = Campaign(postgresql.address, redis.address, folder, epochs_for(kills), mode=mode)
    campaign.killed_at_each(kills)
    found = campaign.tally()
    print("\n" + row(f"postgresql and redis, {mode}", campaign, len(kills), found))
    return campaign, found


def test_the_matrix_has_every_kill_point() -> None:
    assert {kill.split("@")[0] for kills in KILLS.values() for kill in kills} == set(POINTS)


@pytest.mark.parametrize("where", IN_SHORT)
def test_exactly_once_neither_loses_nor_repeats_at_any_point(
    postgresql: PostgreSQL, redis: Redis, tmp_path: Path, where: str
) -> None:
    campaign, found = killed_at_each(postgresql, redis, tmp_path / "job", MATRIX[where])
    note(len(MATRIX[where]), ["collection"], campaign.tally_by_server())
    assert found.exact, found
    assert found.expected > 0
    assert campaign.left_open() == []


@pytest.mark.slow  # in make test the demo and the Kafka matrix show the same
def test_at_least_once_repeats_and_never_loses(postgresql: PostgreSQL, redis: Redis, tmp_path: Path) -> None:
    _, found = killed_at_each(postgresql, redis, tmp_path / "job", WEAKER_MODES_KILLS, "at-least-once")
    assert found.lost == found.phantom == 0
    assert found.repeated > 0, "a test that shows no repeats proves nothing about exactly-once"


@pytest.mark.slow
def test_at_most_once_loses_and_never_repeats(postgresql: PostgreSQL, redis: Redis, tmp_path: Path) -> None:
    _, found = killed_at_each(postgresql, redis, tmp_path / "job", WEAKER_MODES_KILLS, "at-most-once")
    assert found.repeated == found.phantom == 0
    assert found.lost > 0, "a test that shows no losses proves nothing about exactly-once"


def test_a_killed_worker_is_retried_without_loss_or_repeat(
    postgresql: PostgreSQL, redis: Redis, tmp_path: Path
) -> None:
    """Only the Python worker dies, after it pre-committed: Spark runs the task again in the same attempt, and what
    nobody voted for is rolled back."""
    campaign = Campaign(postgresql.address, redis.address, tmp_path / "job", 3, master="local[2,4]")
    campaign.run("after-pre-commit@1:worker", **{ONCE: str(tmp_path / "once")})
    found = campaign.tally()
    print("\n" + row("postgresql and redis, one worker killed", campaign, 1, found))
    assert (tmp_path / "once").exists(), "no worker was killed"
    assert found.exact, found
    assert campaign.left_open() == []
