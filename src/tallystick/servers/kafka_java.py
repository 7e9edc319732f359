"""The JVM of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tallystick.jvm import find_java, resolve
from tallystick.servers.process import Program


def kafka_java(name: str, main: str, *arguments: str, logging: Path, heap_mb: int, options: Sequence[str]) -> Program:
    """A program of Kafka's. Light compilation: brokers of ours live for minutes."""
    command = [str(find_java()), "-Xms64m", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true", *options]
    command += [f"-Dlog4j2.configurationFile={logging}", "-cp", ":".join(map(str, resolve("kafka")))]
    return Program(name, [*command, main, *arguments])
