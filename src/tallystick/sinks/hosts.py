"""``host``, ``host:port``, several of them with commas, or a list."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.errors import ConfigError


def hosts_and_port(sink: str, given: str | Iterable[str], port: int) -> tuple[tuple[str, ...], int]:
    """The hosts, and the one port that all of them have. `ConfigError` if it is not so."""
    listed = given.split(",") if isinstance(given, str) else list(given)
    hosts, ports = [], set()
    for entry in listed:
        if not isinstance(entry, str) or not entry.strip() or "/" in entry or "@" in entry:
            raise ConfigError(f"{sink}: hosts needs names such as 'node1' or 'node1:{port}', found {_safe(entry)}")
        host, colon, number = entry.strip().rpartition(":")
        if colon and not number.isdigit():
            raise ConfigError(f"{sink}: the port of {entry!r} is not a number")
        hosts.append(host if colon else entry.strip())
        ports.add(int(number) if colon else port)
    if not hosts:
        raise ConfigError(f"{sink}: hosts needs at least one node, found none")
    if len(ports) > 1:
        raise ConfigError(f"{sink}: all hosts must have the same port, found {sorted(ports)}")
    return tuple(hosts), ports.pop()


def _safe(entry: object) -> str:
    """An address with a user in it may hold a password."""
    return "an address with '@' in it: give user and password apart" if "@" in str(entry) else repr(entry)
