"""The client libraries, imported when they are needed: a job without Kafka does without them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tallystick.errors import MissingExtraError


def confluent() -> ModuleType:
    """``confluent_kafka``: librdkafka, to read, to ask and to write with Python objects. Raises `MissingExtraError`."""
    return _imported("confluent_kafka", "confluent-kafka")


def kafka_python() -> ModuleType:
    """``kafka``: the protocol in Python, for what librdkafka does not offer. Raises `MissingExtraError`."""
    return _imported("kafka", "kafka-python")


def checksums() -> ModuleType:
    """``crc32c``: the checksum of a batch, by the processor's own instruction. Raises `MissingExtraError`."""
    return _imported("crc32c", "crc32c")


def _imported(module: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"Kafka needs the package {package}, which cannot be imported here ({cause}). on this machine, and on "
            "every machine that runs executors: pip install 'tallystick[kafka]'"
        ) from cause
