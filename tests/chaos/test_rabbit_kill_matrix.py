"""RabbitMQ to Kafka, both real: the job is killed at points of the protocol, its receiver and its broker too.

Run K is killed at point K of a fresh epoch, and between the runs the receiver, which outlives its driver, is killed as
well. In the end the topic must hold every confirmed message once.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from fed_job import FEW, FedJob
from killed_job import note
from kills import KILLS

from kafka_topics import make_topic, read_topic
from rabbit_queues import make_queue, publish, unacknowledged, wait_for
from real_servers import Elsewhere
from tallystick.receiver.process import stop_receiver
from tallystick.receiver.status import is_received, read_status
from tallystick.servers import Kafka, RabbitMQ

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


class FromRabbitMQ(FedJob):
    pipeline = "rabbit_pipeline.py"
    per_run = 40

    def __init__(self, rabbitmq: str, kafka: str, folder: Path) -> None:
        super().__init__(folder)
        self.rabbitmq, self.kafka = rabbitmq, kafka
        self.queue, self.topic = make_queue(rabbitmq), make_topic(kafka)
        self.receivers_killed = 0

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def arguments(self) -> list[str]:
        plan = {"folder": str(self.folder), "url": self.rabbitmq, "queue": self.queue, "servers": self.kafka}
        return [json.dumps({**plan, "topic": self.topic, "expected": str(self.fed)})]

    def feed(self, numbers: range) -> None:
        publish(self.rabbitmq, self.queue, numbers)

    def disturb(self, run: int) -> None:
        if is_received(self.log):
            os.kill(int(read_status(self.log)["pid"]), signal.SIGKILL)
            wait_for("the receiver's end", lambda: not is_received(self.log))
            self.receivers_killed += 1

    def delivered(self) -> Iterable[int]:
        return [int(record.value or b"-1") for record in read_topic(self.kafka, self.topic)]


def campaign(kafka: Kafka | Elsewhere, rabbitmq: RabbitMQ, folder: Path, kills: Sequence[str]) -> None:
    job = FromRabbitMQ(rabbitmq.address, kafka.address, folder)
    try:
        found = job.campaign(kills)
    finally:
        stop_receiver(job.log)
    note(len(kills) + job.receivers_killed, ["rabbitmq"], {"kafka": found})
    print(f"\nRabbitMQ to Kafka, {len(kills)} kills of the job, {job.receivers_killed} of its receiver: {found}")
    assert found.exact, found
    assert job.receivers_killed == len(kills), "a receiver did not outlive its driver"
    assert unacknowledged(rabbitmq.address, job.queue) == 0


def test_neither_lost_nor_repeated(kafka: Kafka | Elsewhere, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    campaign(kafka, rabbitmq, tmp_path / "job", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("where", KILLS)
def test_neither_lost_nor_repeated_at_any_point(
    kafka: Kafka | Elsewhere, rabbitmq: RabbitMQ, tmp_path: Path, where: str
) -> None:
    campaign(kafka, rabbitmq, tmp_path / "job", KILLS[where])
