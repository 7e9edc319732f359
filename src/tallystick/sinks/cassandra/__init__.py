"""Rows into a table of Apache Cassandra: upserts that cannot be overtaken by late ones."""

from tallystick.sinks.cassandra.sink import Cassandra

__all__ = ["Cassandra"]
