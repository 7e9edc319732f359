"""A real RabbitMQ: serves, keeps its data when it is killed, leaves no process behind; and a receiver outlives that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbit_queues import make_queue, numbers_in, publish, spec, unacknowledged, wait_for
from real_servers import started
from tallystick.receiver import LogReader
from tallystick.receiver.process import ensure_received, stop_receiver
from tallystick.receiver.status import read_status
from tallystick.servers import RabbitMQ

COUNT = 2000


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with started(RabbitMQ(tmp_path_factory.mktemp("own-rabbitmq"))) as server:
        yield server


def test_a_killed_broker_comes_back_and_nothing_is_lost_or_repeated(own: RabbitMQ, tmp_path: Path) -> None:
    """The broker is killed while the receiver takes messages in, some of them delivered and not acknowledged."""
    queue = make_queue(own.address)
    publish(own.address, queue, range(COUNT))
    address, pids = own.address, [process.pid for process in own.processes]
    ensure_received(spec(tmp_path, own.address, queue), os.getpid())
    try:
        wait_for("some records", lambda: LogReader(tmp_path).durable > 100)
        own.kill()
        assert not any(_lives(pid) for pid in pids if pid is not None)
        own.start()
        assert own.address == address
        wait_for("all records", lambda: LogReader(tmp_path).durable >= COUNT)
        wait_for("an empty queue", lambda: unacknowledged(own.address, queue) == 0)
        assert read_status(tmp_path)["counts"]["connections_lost"] >= 1
    finally:
        stop_receiver(tmp_path)
    assert sorted(numbers_in(tmp_path)) == list(range(COUNT))


def test_a_stopped_broker_keeps_its_data_and_says_its_version(own: RabbitMQ) -> None:
    queue = make_queue(own.address)
    publish(own.address, queue, range(10))
    own.restart()
    assert unacknowledged(own.address, queue) == 10
    assert own.version[0].isdigit()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
