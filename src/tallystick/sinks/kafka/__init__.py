"""Kafka topics, exactly once. `sink.py` says how; read it first."""

from tallystick.sinks.kafka.sink import Kafka

__all__ = ["Kafka"]
