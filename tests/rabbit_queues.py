"""Queues of RabbitMQ for tests: made, filled with confirmed messages, and received from."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika

from tallystick.receiver import LogReader, LogSettings
from tallystick.receiver.process import ReceiverSpec

PATIENCE_S = 60


@contextmanager
def channel(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def make_queue(url: str, **arguments: Any) -> str:
    name = f"q-{uuid.uuid4().hex[:12]}"
    with channel(url) as open_channel:
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        open_channel.queue_declare(name, durable=True, arguments=given)
    return name


def publish(url: str, queue: str, numbers: Iterable[int], **properties: Any) -> None:
    """One confirmed, persistent message per number; its id is ``id-NUMBER`` unless properties say otherwise."""
    with channel(url) as open_channel:
        open_channel.confirm_delivery()
        for number in numbers:
            given = {"message_id": f"id-{number}", **properties}
            settings = pika.BasicProperties(delivery_mode=2, **given)
            open_channel.basic_publish("", queue, str(number).encode(), settings, mandatory=True)


def inlet(url: str, queue: str, **settings: Any) -> dict[str, Any]:
    return {
        "kind": "rabbitmq",
        "url": url,
        "queue": queue,
        "prefetch": 10,
        "ids": ["message_id", "correlation_id"],
        "accept_without_id": False,
        "stream": None,
        "max_deliveries": 20,
        "encoding": "utf-8",
        "max_record_bytes": 1000,
        "patience_s": 60.0,
        **settings,
    }


def spec(folder: Path, url: str, queue: str, log: LogSettings | None = None, **settings: Any) -> ReceiverSpec:
    return ReceiverSpec(str(folder), inlet(url, queue, **settings), log or LogSettings())


def numbers_in(folder: Path) -> list[int]:
    reader = LogReader(folder)
    return [int(record.value) for _, record in reader.records(reader.first, reader.durable)]


def wait_for(what: str, condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def unacknowledged(url: str, queue: str) -> int:
    """Ready messages, as the broker counts them when nobody holds any."""
    with channel(url) as open_channel:
        return int(open_channel.queue_declare(queue, passive=True).method.message_count)
