"""What would lose or repeat rows at night, asked for before the first epoch: with what to type."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tallystick.errors import SinkError
from tallystick.sinks.redis.client import redis, words

if TYPE_CHECKING:
    from tallystick.sinks.redis.sink import Redis

log = logging.getLogger("tallystick.redis")

OLDEST = 7
_PROBE = "redis.call('HSET', KEYS[1], 'a', 1); return redis.call('UNLINK', KEYS[1])"


def preflight(sink: Redis) -> None:
    """Driver: `SinkError` with the next step if the sink cannot work as it is declared."""
    client = sink.client
    try:
        client.ping()
        about: dict[str, Any] = client.info()
        _need_server(sink, about)
        _warn_of_loss(sink, client, about)
        client.eval(_PROBE, 1, f"{sink.prefix}:preflight")
    except redis().exceptions.NoPermissionError as cause:
        raise SinkError(
            f"redis: this user may not do what is needed at {sink.server}: {words(cause, sink.url, sink.options)}. "
            f"grant it: ACL SETUSER NAME ~{sink.prefix}:* ~{sink.key_prefix}* +@scripting +@hash +@read +info +time "
            f"+ping +unlink +{sink.command}"
        ) from cause
    except redis().exceptions.RedisError as cause:
        raise SinkError(
            f"redis: {sink.server} does not do what is needed: {words(cause, sink.url, sink.options)}. needed a server "
            "that is up and can be written to, and a user and password that are right. look with: redis-cli ping"
        ) from cause


def _need_server(sink: Redis, about: dict[str, Any]) -> None:
    if int(str(about["redis_version"]).split(".")[0]) < OLDEST:
        raise SinkError(f"redis: {sink.server} is Redis {about['redis_version']}, needed {OLDEST}.0 or newer")
    if about.get("redis_mode") == "cluster":
        raise SinkError(
            f"redis: {sink.server} is a node of a cluster, which is not supported: a script changes staged rows and "
            "their targets at once, and these are on different nodes. needed one server, or one with replicas"
        )
    if about.get("role") != "master":
        raise SinkError(f"redis: {sink.server} is a replica, which is read-only: needed the one that it follows")
    policy = str(about.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys-"):
        raise SinkError(
            f"redis: {sink.server} evicts keys of all sorts when memory is short (maxmemory-policy {policy}), and so "
            "could throw away rows that are decided. needed noeviction, or a policy that starts with volatile-: "
            "redis-cli config set maxmemory-policy noeviction"
        )


def _warn_of_loss(sink: Redis, client: Any, about: dict[str, Any]) -> None:
    """A person may want it so; but not without knowing."""
    if not about.get("aof_enabled"):
        log.warning(
            "%s keeps no log of commands (appendonly no): what it confirms is lost when it crashes. "
            "redis-cli config set appendonly yes",
            sink.server,
        )
        return
    try:
        synced = client.config_get("appendfsync").get("appendfsync")
    except redis().exceptions.ResponseError as refused:
        log.warning("%s does not tell how it syncs its log (%s): needed appendfsync always", sink.server, refused)
        return
    if synced != "always":
        log.warning(
            "%s syncs its log now and then (appendfsync %s): if its machine crashes, the last second may be lost. "
            "redis-cli config set appendfsync always",
            sink.server,
            synced,
        )
