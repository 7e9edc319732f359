"""redis-py, imported when it is needed, and one client per process and place."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from tallystick.errors import ConfigError, MissingExtraError

DEFAULTS: Mapping[str, Any] = {"socket_connect_timeout": 10, "socket_timeout": 30}
OURS = ("decode_responses", "retry", "single_connection_client")
SECRETS = ("password",)


def redis() -> ModuleType:
    """Raises `MissingExtraError`."""
    try:
        return import_module("redis")
    except ImportError as cause:
        raise MissingExtraError(
            f"Redis needs the package redis, which cannot be imported here ({cause}). on this machine, and on every "
            "machine that runs executors: pip install 'tallystick[redis]'"
        ) from cause


def place_of(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What an address says, without what is secret. The text of the address is never shown."""
    wrong = [name for name in OURS if name in options]
    if wrong:
        raise ConfigError(f"redis: {wrong[0]} is set by tallystick: leave it out")
    if not isinstance(url, str):
        raise ConfigError("redis: the address is no text: needed one such as 'redis://host:6379/0'")
    redis()
    try:
        parsed = import_module("redis.connection").parse_url(url)
    except ValueError:
        raise ConfigError(
            "redis: the address is not one of Redis's (its text is not shown: it may hold a password). needed "
            "'redis://host:6379/0', 'rediss://…' for TLS, or 'unix://path'"
        ) from None
    return {name: value for name, value in parsed.items() if name in ("host", "port", "db", "path", "username")}


_clients: dict[tuple[Any, ...], Any] = {}
_guard = threading.Lock()


def client_for(url: str, options: Mapping[str, Any]) -> Any:
    """Of this process: what was inherited by a fork is not ours. Its connections are made when they are needed."""
    key = (os.getpid(), url, tuple(sorted((name, repr(value)) for name, value in options.items())))
    with _guard:
        if key not in _clients:
            once_more = import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 1)
            given = {**DEFAULTS, **options, "retry": once_more}
            _clients[key] = redis().Redis.from_url(url, **given)
        return _clients[key]


def words(error: Exception, url: str, options: Mapping[str, Any]) -> str:
    """What a server or the library said, without the password, should it be in it."""
    said = " ".join(str(error).split())
    for secret in (import_module("redis.connection").parse_url(url).get("password"), options.get("password")):
        if secret:
            said = said.replace(str(secret), "***")
    return said
