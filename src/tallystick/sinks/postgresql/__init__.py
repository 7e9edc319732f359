"""PostgreSQL tables, exactly once. `sink.py` says how; read it first."""

from tallystick.sinks.postgresql.sink import PostgreSQL

__all__ = ["PostgreSQL"]
