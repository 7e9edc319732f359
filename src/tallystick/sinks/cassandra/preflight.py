"""Everything that would go wrong at night, asked for before the first epoch: with what was found, and what to type."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from tallystick.errors import SinkError
from tallystick.sinks.cassandra.client import errors, is_passing, quoted
from tallystick.sinks.cassandra.rows import ROW_BYTES_MAX, Layout
from tallystick.sinks.cassandra.types import fits, made_for

if TYPE_CHECKING:
    from tallystick.sinks.cassandra.sink import Cassandra

log = logging.getLogger("tallystick.cassandra")

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SETTINGS = "SELECT name, value FROM system_views.settings"


def preflight(sink: Cassandra, session: Any) -> Layout:
    """Driver: what the table is like. `SinkError` with the next step if the sink cannot work. Writes no row."""
    keyspace, _, name = sink.table.partition(".")
    described = session.cluster.metadata.keyspaces.get(keyspace)
    if described is None:
        raise SinkError(
            f'cassandra: there is no keyspace {keyspace!r}: make it with CREATE KEYSPACE "{keyspace}" WITH '
            "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}, or correct table="
        )
    if name not in described.tables:
        _make_table(sink, session, described)
    table = session.cluster.metadata.keyspaces[keyspace].tables[name]
    _need_no_counters(sink, table)
    settings = _settings(session)
    _warn_of_loss(sink, described, settings)
    layout = Layout(
        {column.name: column.cql_type for column in table.columns.values()},
        tuple(column.name for column in table.partition_key),
        tuple(column.name for column in table.clustering_key),
        _row_bytes_max(settings),
    )
    _need_columns(sink, layout)
    _need_write(sink, session, layout)
    return layout


def _make_table(sink: Cassandra, session: Any, keyspace: Any) -> None:
    name = sink.table.partition(".")[2]
    if name in keyspace.views:
        raise SinkError(f"cassandra: {sink.table} is a materialized view, which cannot be written to: name its table")
    if not sink.create or sink.schema is None:
        raise SinkError(
            f"cassandra: there is no table {sink.table}: make it, or have it made with create=True and key=[…]"
        )
    columns = {field.name: made_for(field.dataType.simpleString()) for field in sink.schema.fields}
    unknown = next((column for column, kind in columns.items() if kind is None), None)
    if unknown is not None:
        raise SinkError(
            f"cassandra: there is no column type for {unknown} {sink.schema[unknown].dataType.simpleString()}: select "
            "its parts, or make the table yourself"
        )
    parts = [f"({quoted(part)})" if not isinstance(part, str) else quoted([part]) for part in sink.key]
    lines = [f"{quoted([column])} {kind}" for column, kind in columns.items()]
    made = (
        f'CREATE TABLE IF NOT EXISTS "{keyspace.name}"."{name}" ({", ".join(lines)}, PRIMARY KEY ({", ".join(parts)}))'
    )
    try:
        session.execute(made, timeout=60)
        session.cluster.refresh_table_metadata(keyspace.name, name)
    except errors() as error:
        raise SinkError(f"cassandra: the table {sink.table} could not be made: {error}") from error
    log.info("made the table %s", sink.table)


def _need_no_counters(sink: Cassandra, table: Any) -> None:
    counters = [column.name for column in table.columns.values() if column.cql_type == "counter"]
    if counters:
        raise SinkError(
            f"cassandra: {sink.table} has the counter {counters[0]!r}. an increment carries no timestamp and no "
            "identity, so one that is sent again counts again, and exactly-once cannot hold. write the running total "
            "to a bigint column instead: let Spark keep the count"
        )


def _need_columns(sink: Cassandra, layout: Layout) -> None:
    if sink.schema is None:
        return
    rows = {field.name: field.dataType.simpleString() for field in sink.schema.fields}
    for name in layout.keys:
        if name not in rows:
            raise SinkError(f"cassandra: {sink.table} has the key column {name!r}, and the rows have {list(rows)}")
    for name, kind in rows.items():
        if name not in layout.types:
            raise SinkError(
                f"cassandra: {sink.table} has no column {name!r}, it has {list(layout.types)}: add it with ALTER TABLE "
                f'{sink.table} ADD "{name}" {made_for(kind) or "…"}, or leave it out with select='
            )
        if not fits(kind, layout.types[name]):
            raise SinkError(
                f"cassandra: the column {name!r} of {sink.table} is {layout.types[name]}, and the rows have {kind}, "
                f"which does not always fit: cast it in the job's steps"
            )


def _need_write(sink: Cassandra, session: Any, layout: Layout) -> None:
    """The right to write is asked for with a statement that is prepared and never run."""
    names = list(layout.types) if sink.schema is None else sink.schema.fieldNames()
    try:
        session.prepare(sink.insert(names))
    except errors() as error:
        kind = "does not answer" if is_passing(error) else "refuses to be written to"
        raise SinkError(f"cassandra: {sink.table} {kind}: {error}") from error


def _settings(session: Any) -> dict[str, str]:
    """Of the node that answers; empty where servers do not tell (before 4.0, or without the right to read them)."""
    try:
        return {row.name: row.value or "" for row in session.execute(_SETTINGS, timeout=10)}
    except errors() as error:
        log.info("the settings of the server are not known: %s", error)
        return {}


def _warn_of_loss(sink: Cassandra, keyspace: Any, settings: dict[str, str]) -> None:
    copies = re.search(r"'replication_factor': '(\d+)'", keyspace.as_cql_query())
    if settings.get("commitlog_sync") == "periodic" and copies is not None and copies[1] == "1":
        log.warning(
            "%s has one replica and commitlog_sync is periodic: a node that crashes loses rows that it acknowledged in "
            "the last %s. set commitlog_sync: batch or group in cassandra.yaml, or use more replicas",
            sink.table,
            settings.get("commitlog_sync_period") or "10s",
        )


def _row_bytes_max(settings: dict[str, str]) -> int:
    """What a mutation may have: half of a commit log segment, unless the server is told otherwise."""
    chosen = _bytes(settings.get("max_mutation_size", ""))
    if chosen is not None:
        return chosen
    segment = _bytes(settings.get("commitlog_segment_size", ""))
    return ROW_BYTES_MAX if segment is None else segment // 2


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", text)
    return int(match[1]) * _UNITS[match[2].lower()] if match and match[2].lower() in _UNITS else None
