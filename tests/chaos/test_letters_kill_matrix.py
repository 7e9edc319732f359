"""Kill a job with dead letters at every point of the protocol: each row is in its table, or among the letters, once.

Run K is killed at point K of epoch K+1 and the next run takes over.
"""

from __future__ import annotations

from pathlib import Path

import letters_pipeline
import pytest
from databases_campaign import Campaign, row
from killed_job import epochs_for
from kills import KILLS

from tallystick.servers import PostgreSQL, Redis

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


class Letters(Campaign):
    pipeline = "letters_pipeline.py"
    tables = ("events", "letters")
    expected = staticmethod(letters_pipeline.expected)
    delivered = staticmethod(letters_pipeline.delivered)


@pytest.mark.parametrize("where", KILLS)
def test_each_row_is_in_exactly_one_place(postgresql: PostgreSQL, redis: Redis, tmp_path: Path, where: str) -> None:
    kills = KILLS[where]
    campaign = Letters(postgresql.address, redis.address, tmp_path / "job", epochs_for(kills))
    letters_pipeline.prepare(campaign.plan)
    campaign.killed_at_each(kills)
    found = campaign.tally()
    print("\n" + row(f"dead letters, killed {where}", campaign, len(kills), found))
    assert found.exact, found
    assert {"letter of events", "letter of counts"} <= {kind for kind, _ in campaign.delivered(campaign.plan)}
    assert campaign.left_open() == []
