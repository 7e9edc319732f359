"""Redis, exactly once, also with commands that are not idempotent. `sink.py` says how; read it first."""

from tallystick.sinks.redis.sink import Redis

__all__ = ["Redis"]
