"""One set of settings for the three clients that a job uses, in Kafka's own names.

Spark's connector has Java's clients inside, transactions are written and ended through kafka-python, and librdkafka
reads tokens and writes if it is asked to. They are told the same, each in its own words, so that nobody has to write it
down three times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from tallystick.errors import ConfigError
from tallystick.kafka import security
from tallystick.kafka.options import OPTIONS, REFUSED, Option, Role, unknown

PREFIX = "kafka."
HIDDEN = "…"

_SERVER = re.compile(r"(?:[A-Z0-9_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class KafkaSettings:
    """Where the brokers are and how to talk to them. Checked when it is made; what cannot work is a `ConfigError`.

    Made with `of`. Travels to executors. Shown without secrets, but ``options`` holds them.
    """

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", _servers(self.servers))
        object.__setattr__(self, "options", MappingProxyType(_checked(self.options)))
        security.check(self.options)

    @classmethod
    def of(cls, servers: str | Iterable[str], options: Mapping[str, Any] | None = None) -> KafkaSettings:
        """``servers`` as ``"host:port,host:port"`` or a list; option names with or without ``kafka.`` in front."""
        return cls(_servers(servers), options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaSettings, (self.servers, dict(self.options)))

    def __repr__(self) -> str:
        shown = {name: HIDDEN if OPTIONS[name].secret else value for name, value in self.options.items()}
        return f"KafkaSettings({self.servers!r}, {shown!r})"

    def of_role(self, *roles: Role) -> dict[str, str]:
        """Those options that are about these roles."""
        return {name: value for name, value in self.options.items() if OPTIONS[name].role in roles}

    def spark(self) -> dict[str, str]:
        """Options for ``spark.readStream.format("kafka")`` and its sink."""
        given = security.for_spark(self.options)
        return {f"{PREFIX}{name}": value for name, value in {"bootstrap.servers": self.servers, **given}.items()}

    def librdkafka(self, role: Literal["producer", "consumer", "connection"] = "producer") -> dict[str, str]:
        """For ``Producer``, ``Consumer`` or (``connection``) ``AdminClient``: what librdkafka has no word for, and what
        is for another role, is left out. Raises `ConfigError` for what it cannot do."""
        made = {"bootstrap.servers": self.servers, **security.for_librdkafka(self.options)}
        for name, value in self.of_role("connection", role).items():
            option = OPTIONS[name]
            if option.librdkafka:
                made[option.librdkafka] = _librdkafka_value(option, value)
        level = self.options.get(f"compression.{self.options.get('compression.type', 'none')}.level")
        if role == "producer" and level is not None:
            made["compression.level"] = str(min(max(int(level), -1), 12))
        return made | _companions(made, role)

    def kafka_python(self) -> dict[str, Any]:
        """Keyword arguments for ``KafkaAdminClient``. Reads the PEM files that are named, if any."""
        made = {"bootstrap_servers": self.servers.split(","), **security.for_kafka_python(self.options)}
        for name, value in self.options.items():
            option = OPTIONS[name]
            if option.kafka_python and not (value == "-1" and name.endswith(".buffer.bytes")):
                made[option.kafka_python] = option.for_kafka_python(value)
        return made


def _servers(servers: object) -> str:
    if not isinstance(servers, str) and (not isinstance(servers, Iterable) or isinstance(servers, bytes | Mapping)):
        raise ConfigError(f"kafka: servers is a {type(servers).__name__}, needed such as 'localhost:9092'")
    found = [servers] if isinstance(servers, str) else list(servers)
    if not all(isinstance(entry, str) for entry in found):
        raise ConfigError(f"kafka: servers is {found!r}, needed text such as 'localhost:9092'")
    each = [entry.strip() for text in found for entry in text.split(",") if entry.strip()]
    if not each:
        raise ConfigError("kafka: there are no servers, needed such as 'localhost:9092' or 'one:9092,two:9092'")
    for entry in each:
        match = _SERVER.fullmatch(entry)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise ConfigError(f"kafka: {entry!r} is no server, needed HOST:PORT such as 'localhost:9092'")
    return ",".join(each)


def _checked(options: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(options, Mapping):
        raise ConfigError(f"kafka: options is a {type(options).__name__}, needed values by name")
    checked: dict[str, str] = {}
    for given, value in options.items():
        name = str(given).removeprefix(PREFIX)
        if name in REFUSED:
            raise ConfigError(f"kafka: the option {given} is refused: {REFUSED[name]}")
        if name not in OPTIONS:
            raise unknown(name)
        if name in checked:
            raise ConfigError(f"kafka: {name} is set twice, with and without '{PREFIX}' in front: leave one out")
        checked[name] = OPTIONS[name].checked(value)
    _need_exactly_once(checked)
    return checked


def _need_exactly_once(options: Mapping[str, str]) -> None:
    """What turns off that a producer writes every record once and in order. Java's clients would refuse most, later."""
    wrong = {
        "acks": ("all", options.get("acks") in ("0", "1"), "records could be lost with one broker"),
        "enable.idempotence": ("true", options.get("enable.idempotence") == "false", "a retry would write twice"),
        "retries": ("1 or more", options.get("retries") == "0", "a record would be lost with one connection"),
        "max.in.flight.requests.per.connection": (
            "1 to 5",
            int(options.get("max.in.flight.requests.per.connection", "1")) > 5,
            "brokers remember five requests of a producer, and more could be written twice or out of order",
        ),
    }
    for name, (needed, is_wrong, why) in wrong.items():
        if is_wrong:
            raise ConfigError(f"kafka: {name}={options[name]} is refused: {why}. needed {needed}, or leave it out")


def _librdkafka_value(option: Option, value: str) -> str:
    """Where the two mean the same by another number."""
    if option.name == "buffer.memory":
        return str(min(max(int(value) // 1024, 1), 2**31 - 1))
    if option.name.endswith(".buffer.bytes") and value == "-1":
        return "0"  # the choice of the operating system
    if option.name == "batch.size" and value == "0":
        return "1"  # no batches
    if option.name == "acks":
        return "all"
    return option.for_librdkafka(value)


def _companions(made: Mapping[str, str], role: str) -> dict[str, str]:
    """Settings that librdkafka binds to others: a default of its own must not refuse what Java's clients take."""
    bound: dict[str, str] = {}
    pause, longest = made.get("reconnect.backoff.ms"), made.get("reconnect.backoff.max.ms")
    if pause is not None and longest is None:
        bound["reconnect.backoff.max.ms"] = str(max(int(pause), 10_000))
    elif longest is not None:
        bound["reconnect.backoff.ms"] = str(min(int(pause or 100), int(longest)))
    if role == "consumer" and "fetch.max.bytes" in made:
        bound["message.max.bytes"] = str(max(1000, min(int(made["fetch.max.bytes"]), 1_000_000)))
    return bound
