"""Queues and streams of RabbitMQ: one of the prover's own, whose receiver is killed while it receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tallystick.prover.feeds.base import Rows
from tallystick.prover.feeds.received import ReceivedFeed
from tallystick.prover.place import Place
from tallystick.sinks.extras import needed
from tallystick.sources import RabbitMQ

PREFETCH_MAX = 20
"""So that a killed receiver leaves something behind."""


class RabbitMQFeed(ReceivedFeed):
    kind = "rabbitmq"
    servers = ("rabbitmq",)
    proves = "from the queue on: its receiver was killed while it received, and its log held every message once"
    receiver_kills = 2

    @classmethod
    def receiving(cls, source: RabbitMQ, name: str, place: Place) -> RabbitMQ:
        queue = place.input_name(name)
        first = None if source.stream is None else "first"
        prefetch = min(source.prefetch, PREFETCH_MAX)
        return replace(source, url=place.server("rabbitmq"), queue=queue, prefetch=prefetch, stream=first)

    @classmethod
    @contextmanager
    def sending(cls, source: RabbitMQ, rows: Rows, place: Place) -> Iterator[None]:
        """All messages are confirmed by the broker before anybody receives."""
        pika = needed("pika", "pika", "rabbitmq")
        connection = pika.BlockingConnection(pika.URLParameters(source.url))
        try:
            channel = connection.channel()
            kind = {} if source.stream is None else {"x-queue-type": "stream"}
            channel.queue_declare(source.queue, durable=True, arguments=kind)
            channel.confirm_delivery()
            for number, (_, _, value) in enumerate(rows.messages()):
                channel.basic_publish("", source.queue, value, _properties(pika, source, number), mandatory=True)
        finally:
            connection.close()
        yield


def _properties(pika: Any, source: RabbitMQ, number: int) -> Any:
    """With an id, wherever the source looks for one."""
    id_ = f"prove-{number}"
    headers = {name.removeprefix("header:"): id_ for name in source.ids if name.startswith("header:")}
    return pika.BasicProperties(delivery_mode=2, message_id=id_, correlation_id=id_, headers=headers)
