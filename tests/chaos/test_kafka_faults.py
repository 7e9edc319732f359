"""Brokers, the network and drivers fail under a real Kafka to Kafka job, each at a place that the test chooses.

The job is held there (`kafka_pipeline`), the fault happens, and the job is let go while it lasts. Nothing may be lost,
repeated or out of order, and the reader that reads all along sees what the one at the end sees.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kafka_campaign import Campaign, assert_exactly_once
from killed_job import RUN_TIMEOUT_S, finish, until

from real_servers import started
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.prover import JobProcess
from tallystick.servers import Kafka, KafkaCluster
from tallystick.servers.tcp_proxy import Way

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

AWAY_S = 2.0
"""How long a broker or the network is gone for a job that goes on meanwhile."""
PREPARING, DECIDING, COMMITTING = "before-pre-commit@1", "before-decide@2", "between-commits@3"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One that is killed, for all tests here that need no more."""
    with started(Kafka(tmp_path_factory.mktemp("broker"))) as server:
        yield server


def test_the_broker_dies_while_preparing_deciding_and_committing(broker: Kafka, tmp_path: Path) -> None:
    """One run outlives all three. It may start its query anew (`FixedDelay`), not its process."""
    campaign = Campaign(broker.address, tmp_path / "job", 5, restarts=3, holds=(PREPARING, DECIDING, COMMITTING))
    with campaign.follower() as follower, campaign.running() as process:
        for point in campaign.plan.holds:
            campaign.await_hold(point, process)
            broker.kill()
            campaign.release(point)
            time.sleep(AWAY_S)
            broker.start()
        finish(process)
        found = campaign.findings(follower)
    print("\n" + found.row("broker killed: preparing, deciding, committing", campaign.runs, 3))
    assert_exactly_once(found)


def test_the_coordinator_of_a_prepared_transaction_dies(tmp_path: Path) -> None:
    """Another broker becomes coordinator and commits what was prepared under the dead one."""
    held = "after-decide@1"
    with started(KafkaCluster(tmp_path / "brokers")) as brokers:
        campaign = Campaign(brokers.address, tmp_path / "job", 4, restarts=3, holds=(held,))
        with campaign.follower() as follower, campaign.running() as process:
            campaign.await_hold(held, process)
            with asking(campaign) as transactions:
                prepared = [found.name for found in transactions.open(campaign.prefix())]
                before = coordinators(transactions, prepared)
            brokers.kill_node(min(before.values()))
            campaign.release(held)
            finish(process)
            with asking(campaign) as transactions:
                after = coordinators(transactions, prepared)
            found = campaign.findings(follower)
    moved = [name for name in prepared if before[name] != after[name]]
    print("\n" + found.row(f"coordinator of {len(moved)} of {len(prepared)} transactions killed", campaign.runs, 1))
    assert moved, f"nothing moved: {before}, {after}"
    assert_exactly_once(found)


@contextmanager
def asking(campaign: Campaign) -> Iterator[Transactions]:
    transactions = Transactions(KafkaSettings.of(campaign.address))
    try:
        yield transactions
    finally:
        transactions.close()


def coordinators(transactions: Transactions, names: Sequence[str]) -> dict[str, int]:
    """Which node is responsible for each of these transactional ids."""
    return dict(transactions._connection.run(transactions._connection.coordinators, names))


def test_the_network_is_cut_slowed_and_loses_answers(broker: Kafka, tmp_path: Path) -> None:
    """Between the job and the broker only: the readers and the test itself come by another way."""
    cut, slowed, unanswered = PREPARING, "before-prepare@2", "before-commits@3"
    with broker.proxy() as proxy:
        campaign = Campaign(
            broker.address, tmp_path / "job", 5, proxy.address, restarts=3, holds=(cut, slowed, unanswered)
        )
        with campaign.follower() as follower, campaign.running() as process:
            campaign.await_hold(cut, process)
            proxy.cut()
            campaign.release(cut)
            time.sleep(AWAY_S)
            proxy.heal()

            campaign.await_hold(slowed, process)
            proxy.slow(0.1)
            campaign.release(slowed)

            campaign.await_hold(unanswered, process)
            proxy.heal()
            seen = follower.count()
            proxy.hold(Way.TO_CLIENT)
            campaign.release(unanswered)
            until(lambda: follower.count() > seen, "the commit to be seen, though its answer is lost", process)
            proxy.heal()
            finish(process)
            found = campaign.findings(follower)
    print("\n" + found.row("network cut, slowed, answers of commit lost", campaign.runs, 3))
    assert_exactly_once(found)


@pytest.mark.parametrize(
    ("stopped_at", "restarts", "last_words"),
    [
        # it finds ABORT where it wanted COMMIT, and never starts again
        ("before-decide@2", 3, "another driver leads this job now"),
        # its epoch was recovered: it commits once more, without effect, and Spark does not let it note that
        pytest.param("after-decide@2", 3, "another driver of job", marks=pytest.mark.slow),
    ],
)
def test_of_two_drivers_on_one_checkpoint_the_first_stops_itself(
    broker: Kafka, tmp_path: Path, stopped_at: str, restarts: int, last_words: str
) -> None:
    """The first driver is stopped, as a machine that hangs; a second one takes over and goes on to the end; then the
    first wakes up. The lock of the checkpoint is taken away from it, as where a file system has no locks."""
    campaign = Campaign(broker.address, tmp_path / "job", 5, restarts=restarts, holds=(stopped_at,))
    with campaign.follower() as follower, campaign.running() as zombie:
        campaign.await_hold(stopped_at, zombie)
        with stopped(zombie):
            (tmp_path / "job" / "checkpoint" / "tallystick" / "lock").unlink()
            campaign.release(stopped_at)
            campaign.plan = replace(campaign.plan, holds=())
            campaign.run()
            before = campaign.findings(follower)
        ended = zombie.wait(RUN_TIMEOUT_S)
        found = campaign.findings(follower)
    print("\n" + found.row(f"two drivers, the first stopped {stopped_at}", campaign.runs, 0))
    assert_exactly_once(before)
    assert_exactly_once(found)
    assert found.tally.delivered == before.tally.delivered
    assert (found.aborted > 0) == stopped_at.startswith("before"), "what was not decided is rolled back, and only that"
    assert ended.status not in (0, -signal.SIGKILL), "the first driver was to stop itself"
    assert last_words in zombie.log.read_text()


@contextmanager
def stopped(process: JobProcess) -> Iterator[None]:
    """A driver, its JVM and its workers take no step inside this block."""
    process.pause()
    try:
        yield
    finally:
        process.resume()
