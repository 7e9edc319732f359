"""Kill a real receiver of RabbitMQ with SIGKILL at every named point, start it again, and compare queue and log.

Run K is killed at point K while messages flow, and the next run takes over. In the end the log must hold every message
that the broker confirmed, once.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from rabbit_queues import make_queue, numbers_in, publish, spec, unacknowledged
from tallystick import evidence
from tallystick.killpoints import RECEIVER_POINTS
from tallystick.prover import JobProcess, tally
from tallystick.receiver import LogReader, LogSettings, ReceiverLog
from tallystick.servers import RabbitMQ

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

PROCESS = str(Path(__file__).with_name("receiver_process.py"))
PER_RUN = 60
IDLE_S = 1.5
RANDOM_KILLS = 20
KILLS = {
    "receiver-before-append": 2,
    "receiver-inside-append": 1,
    "receiver-after-append": 3,
    "receiver-after-sync": 2,
    "receiver-before-acknowledge": 1,
    "receiver-after-acknowledge": 2,
    "receiver-new-segment": 3,
    "receiver-before-removal": 0,
    "receiver-after-removal": 0,
}
"""Counted in group commits of a run, so that something was acknowledged before, and something waits."""
SMALL = LogSettings(max_bytes=1 << 20, segment_bytes=400, keep_s=0.0, window=1000)


def run(folder: Path, text: str, kill: str | None) -> None:
    process = JobProcess([PROCESS, text, str(IDLE_S)], folder / "out", kill)
    try:
        ended = process.wait(60)
    finally:
        process.kill()
    if kill is None:
        assert ended.status == 0, process.tail()
    else:
        assert ended.killed, f"{kill} was not reached:\n{process.tail()}"


def test_the_matrix_has_every_receiver_point() -> None:
    assert set(KILLS) == set(RECEIVER_POINTS)


def test_a_receiver_killed_at_any_point_loses_and_repeats_nothing(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    log = tmp_path / "log"
    made = spec(log, rabbitmq.address, queue, SMALL).to_json()
    kept: list[int] = []
    published = 0
    for point, number in [*KILLS.items(), (None, 0)]:
        publish(rabbitmq.address, queue, range(published, published + PER_RUN))
        published += PER_RUN
        if point is not None and "removal" in point:
            kept += settle_all(log, len(kept))
        run(tmp_path, made, f"{point}@{number}" if point is not None else None)
    reader = LogReader(log)
    kept += [int(record.value) for _, record in reader.records(len(kept), reader.durable)]
    found = tally(range(published), kept)
    evidence.note(len(KILLS), {"rabbitmq": evidence.Found(found.lost, found.repeated)}, {})
    print(f"\nreceiver of RabbitMQ, {len(KILLS)} kills: {found}")
    assert found.exact, found
    assert unacknowledged(rabbitmq.address, queue) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_receiver_killed_at_any_moment_loses_and_repeats_nothing(
    rabbitmq: RabbitMQ, tmp_path: Path, seed: int
) -> None:
    """No named points: the process is killed from outside, whenever, while messages come in."""
    moments = random.Random(seed)
    queue, log = make_queue(rabbitmq.address), tmp_path / "log"
    made = spec(log, rabbitmq.address, queue, SMALL).to_json()
    published = 0
    for _ in range(RANDOM_KILLS):
        publish(rabbitmq.address, queue, range(published, published + 5 * PER_RUN))
        published += 5 * PER_RUN
        process = JobProcess([PROCESS, made, "30"], tmp_path / "out")
        time.sleep(moments.uniform(0.2, 1.0))
        process.kill()
    run(tmp_path, made, None)
    found = tally(range(published), numbers_in(log))
    print(f"\nreceiver of RabbitMQ, {RANDOM_KILLS} kills at any moment, seed {seed}: {found}")
    assert found.exact, f"{found}, seed {seed}: pytest -m slow {__file__} -k 'moment and {seed}'"


def settle_all(log: Path, start: int) -> list[int]:
    """A job has read up to here, and its epochs are settled: retention may have it."""
    reader = LogReader(log)
    with ReceiverLog(log, SMALL):
        stop = reader.durable  # of a log that is recovered
    found = [int(record.value) for _, record in reader.records(start, stop)]
    reader.settle(stop)
    return found


def test_a_killed_receiver_leaves_a_log_that_readers_never_see_torn(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Between the kill and the restart: what is below the mark is whole."""
    queue = make_queue(rabbitmq.address)
    made = spec(tmp_path / "log", rabbitmq.address, queue).to_json()
    publish(rabbitmq.address, queue, range(PER_RUN))
    run(tmp_path, made, "receiver-inside-append@2")
    found = numbers_in(tmp_path / "log")
    assert found == list(range(len(found)))
    assert 0 < len(found) < PER_RUN, "two group commits were to be whole, and a third one torn"
    run(tmp_path, made, None)
    assert numbers_in(tmp_path / "log") == list(range(PER_RUN))
