"""Random faults, one after the other, on one Kafka to Kafka job, until it is done: part of ``make soak``.

A failure names its seed: ``TALLYSTICK_SEED=… pytest -m slow tests/chaos/test_kafka_soak.py`` draws the same faults
again, though a busy machine may let them hit other places.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka_campaign import Campaign, assert_exactly_once

from real_servers import started
from tallystick.prover import JobProcess
from tallystick.servers import Kafka
from tallystick.servers.tcp_proxy import TcpProxy, Way

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("TALLYSTICK_SEED", "1"))
EPOCHS = 30
CAMPAIGN_TIMEOUT_S = 1200.0
FAULTS = ("broker killed", "driver killed", "cut", "dropped", "slowed", "answers lost", "requests lost")


class Nemesis:
    """Does one thing at a time to the broker, the network or the driver, and puts it right again."""

    def __init__(self, draw: random.Random, broker: Kafka, proxy: TcpProxy) -> None:
        self.draw, self.broker, self.proxy = draw, broker, proxy
        self.done: Counter[str] = Counter()

    def strike(self, process: JobProcess) -> None:
        fault = self.draw.choice(FAULTS)
        self.done[fault] += 1
        match fault:
            case "broker killed":
                self.broker.kill()
                self._last(2.0)
                self.broker.start()
            case "driver killed":
                process.kill()
            case "dropped":
                self.proxy.drop()
            case "cut":
                self.proxy.cut()
                self._last(4.0)
            case "slowed":
                self.proxy.slow(0.1)
                self._last(4.0)
            case "answers lost":
                self.proxy.hold(Way.TO_CLIENT)
                self._last(4.0)
            case "requests lost":
                self.proxy.hold(Way.TO_SERVER)
                self._last(4.0)
        self.proxy.heal()

    def _last(self, at_most_s: float) -> None:
        time.sleep(self.draw.uniform(0.0, at_most_s))


@pytest.mark.parametrize("seed", [SEED, SEED + 1], ids="seed-{}".format)
def test_nothing_is_lost_or_repeated_whatever_fails(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with started(Kafka(tmp_path / "broker")) as broker, broker.proxy() as proxy:
        campaign = Campaign(broker.address, tmp_path / "job", EPOCHS, proxy.address, restarts=20)
        nemesis = Nemesis(draw, broker, proxy)
        with campaign.follower() as follower:
            run_to_the_end(campaign, nemesis)
            found = campaign.findings(follower)
    faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(nemesis.done.items()))
    print("\n" + found.row(f"random faults, seed {seed}", campaign.runs, nemesis.done["driver killed"]) + f"\n{faults}")
    assert_exactly_once(found)


def run_to_the_end(campaign: Campaign, nemesis: Nemesis) -> None:
    deadline = time.monotonic() + CAMPAIGN_TIMEOUT_S
    while True:
        with campaign.running() as process:
            kills = nemesis.done["driver killed"]
            while process.running():
                assert time.monotonic() < deadline, process.tail()
                time.sleep(nemesis.draw.uniform(0.1, 3.0))
                if process.running() and campaign.epochs_done() < EPOCHS - 1:
                    nemesis.strike(process)
            if nemesis.done["driver killed"] == kills:
                assert process.wait(1).status == 0, process.tail()
                return
