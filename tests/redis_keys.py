"""Keys for tests: names that nobody else uses, and what a client finds under them."""

from __future__ import annotations

import uuid
from typing import Any

import redis


def new_prefix() -> str:
    return f"t-{uuid.uuid4().hex[:12]}:"


def client(address: str) -> Any:
    return redis.Redis.from_url(address, socket_timeout=30)


def found(address: str, pattern: str) -> dict[str, Any]:
    """Every key that matches, with what it holds: text, a hash, members with scores, or the entries of a stream."""
    asked = client(address)
    readers: dict[bytes, Any] = {
        b"string": lambda key: asked.get(key),
        b"hash": lambda key: asked.hgetall(key),
        b"zset": lambda key: asked.zrange(key, 0, -1, withscores=True),
        b"stream": lambda key: [fields for _, fields in asked.xrange(key)],
    }
    keys = sorted(asked.scan_iter(pattern, count=1000))
    return {key.decode(): readers[asked.type(key)](key) for key in keys}


def held(address: str, prefix: str = "tallystick") -> list[str]:
    """The slices that are staged or remembered."""
    return [key.decode() for key in client(address).scan_iter(f"{prefix}:*.*-*-*", count=1000)]


def not_applied(address: str, prefix: str) -> list[str]:
    """Those of them that hold rows which are not applied."""
    asked = client(address)
    states = {key: asked.hmget(key, "sealed", "next") for key in held(address, prefix)}
    return [key for key, (sealed, following) in states.items() if sealed is None or int(following) < int(sealed)]
