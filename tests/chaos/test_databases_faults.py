"""The servers die and come back while a job writes to them: nothing is lost, repeated or left behind.

The job is held where the fault is to hit, the fault happens, and the job is let go while it lasts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from databases_campaign import Campaign, row
from killed_job import RUN_TIMEOUT_S, finish
from test_kafka_faults import stopped

from real_servers import started
from tallystick.servers import PostgreSQL, Redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

AWAY_S = 2.0


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgreSQL, Redis]]:
    """Those that are killed, for all tests here."""
    folder = tmp_path_factory.mktemp("doomed")
    with started(PostgreSQL(folder / "postgresql")) as postgresql, started(Redis(folder / "redis")) as redis:
        yield postgresql, redis


def test_both_servers_die_before_preparing_deciding_and_committing(
    doomed: tuple[PostgreSQL, Redis], tmp_path: Path
) -> None:
    """One run outlives all three. It may start its query anew (`FixedDelay`), not its process."""
    points = ("before-prepare@1", "before-decide@2", "after-decide@3")
    campaign = Campaign(doomed[0].address, doomed[1].address, tmp_path / "job", 5, restarts=40, holds=points)
    with campaign.running() as process:
        for point in points:
            campaign.await_hold(point, process)
            for server in doomed:
                server.kill()
            campaign.release(point)
            time.sleep(AWAY_S)
            for server in doomed:
                server.start()
        finish(process)
    found = campaign.tally()
    print("\n" + row("both servers killed: preparing, deciding, committing", campaign, 3, found))
    assert found.exact, found
    assert campaign.left_open() == []


@pytest.mark.slow
def test_of_two_drivers_the_first_stops_itself(doomed: tuple[PostgreSQL, Redis], tmp_path: Path) -> None:
    """The first driver hangs when it has prepared; a second one takes over and goes on to the end; the first wakes up.
    The lock of the checkpoint is taken away from it, as where a file system has no locks."""
    held = "before-decide@2"
    campaign = Campaign(doomed[0].address, doomed[1].address, tmp_path / "job", 4, restarts=2, holds=(held,))
    with campaign.running() as zombie:
        campaign.await_hold(held, zombie)
        with stopped(zombie):
            (tmp_path / "job" / "checkpoint" / "tallystick" / "lock").unlink()
            campaign.release(held)
            campaign.plan = replace(campaign.plan, holds=())
            campaign.run()
            before = campaign.tally()
        ended = zombie.wait(RUN_TIMEOUT_S)
    found = campaign.tally()
    print("\n" + row("postgresql and redis, two drivers", campaign, 0, found))
    assert before.exact, before
    assert found.exact, found
    assert campaign.left_open() == []
    assert ended.status not in (0, -signal.SIGKILL), "the first driver was to stop itself"
    assert "another driver has taken over" in zombie.log.read_text()
