"""What a broker of ours is told: the properties that all of them share, its listeners, and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.servers.ports import LOOPBACK

LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""

_ALIKE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    # brokers send each other the markers that end a transaction: never by way of a proxy
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.max.timeout.ms": "900000",
    # a transaction that ran out of time is aborted within this time, not within 10 s
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # after a kill a broker is let in again when its old session has ended: 3 s, not 9
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.enable": "false",
}

ALONE = {
    **_ALIKE,
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # one partition: its coordinator is ready as soon as the first transaction asks
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}

ONE_OF_THREE = {
    **_ALIKE,
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@dataclass(frozen=True)
class Listener:
    """A port of a broker. Clients are sent to ``advertised_port``: its own port, or that of a proxy before it."""

    name: str
    port: int
    advertised_port: int
    protocol: str = "PLAINTEXT"


def listener_settings(listeners: Sequence[Listener], controller_port: int) -> dict[str, str]:
    """The controller's listener is no client's: it is not advertised."""
    bound = [f"{each.name}://{LOOPBACK}:{each.port}" for each in listeners]
    advertised = [f"{each.name}://{LOOPBACK}:{each.advertised_port}" for each in listeners]
    protocols = [f"{each.name}:{each.protocol}" for each in listeners]
    return {
        "listeners": ",".join([*bound, f"CONTROLLER://{LOOPBACK}:{controller_port}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
    }


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """In Java's format, where a backslash escapes."""
    lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in settings.items()]
    path.write_text("\n".join([*lines, ""]))
