"""Before the first epoch: the table is made, or it is checked that files can be added to it as they are.

Files are added to the log without Delta's own writer in between, so a table that asks more of a writer than well-formed
Parquet files (checks, generated columns, renamed columns, row ids) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tallystick.errors import ConfigError, SinkError
from tallystick.records import Json
from tallystick.sinks.delta.library import library, newest, told
from tallystick.sinks.files.settings import Settings

WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that ask nothing of whoever adds files, or only where a setting or a column says so, which is looked at."""
COLUMN_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
PARTITION_KINDS = ("string", "byte", "short", "integer", "long", "boolean", "date")


def make_or_check(path: str, schema: Json | None, settings: Settings) -> None:
    """``schema`` is that of the rows, in Spark's own JSON; None if nobody has said it, then the table must be there."""
    with told(path, "read"):
        table = newest(path)
    if table is not None:
        return _check(path, table, schema, settings)
    if schema is None:
        raise SinkError(f"there is no Delta table in {path}, and no rows to tell its columns: make it first")
    delta = library()
    _check_partitions(schema, settings.partition_by)
    with told(path, "made"):
        wanted = delta.Schema.from_json(json.dumps(_loosened(schema, settings.required)))
        delta.DeltaTable.create(path, wanted, mode="ignore", partition_by=list(settings.partition_by))
        return _check(path, newest(path), schema, settings)


def _check(path: str, table: Any, schema: Json | None, settings: Settings) -> None:
    for reason in _reasons(table):
        raise SinkError(f"the Delta table {path} {reason}: files cannot be added to it from outside. use another table")
    found = tuple(table.metadata().partition_columns)
    if found != settings.partition_by:
        raise ConfigError(
            f"the Delta table {path} is partitioned by {_words(found)}, the sink by {_words(settings.partition_by)}: "
            f"say partition_by={list(found)}"
        )
    _check_partitions(json.loads(table.schema().to_json()), found)
    if schema is not None:
        _compare(path, json.loads(table.schema().to_json()), schema, settings)


def _reasons(table: Any) -> Iterator[str]:
    """Why files cannot simply be added."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    unknown = sorted(set(protocol.writer_features or ()) - WRITER_FEATURES)
    if unknown:
        yield f"has the features {', '.join(unknown)}"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        yield "maps its columns to other names (delta.columnMapping.mode)"
    rules = [name for name in configuration if name.startswith("delta.constraints.")]
    if rules:
        yield f"has the check {rules[0].removeprefix('delta.constraints.')}, which only Delta's own writer makes"
    for field in json.loads(table.schema().to_json())["fields"]:
        for rule in COLUMN_RULES:
            if rule in field.get("metadata", {}):
                yield f"has a rule for the column {field['name']} ({rule})"


def _compare(path: str, table: Json, rows: Json, settings: Settings) -> None:
    wanted = {field["name"]: field for field in table["fields"]}
    given = {field["name"]: field for field in rows["fields"]}
    for name in [*wanted, *given]:
        ours, theirs = _kind(given.get(name)), _kind(wanted.get(name))
        if ours != theirs:
            raise ConfigError(
                f"column {name!r} is {ours} in the rows and {theirs} in the Delta table {path}: select or cast the "
                "columns that the table has"
            )
    unguarded = [name for name, field in wanted.items() if not field["nullable"] and name not in settings.required]
    if unguarded:
        raise ConfigError(
            f"the Delta table {path} has no nulls in {', '.join(unguarded)}: say required={unguarded}, so that rows "
            "with a null are refused"
        )


def _kind(field: Json | None) -> str:
    """A type in words, without what does not matter for reading a file: nullability, comments."""
    return "missing" if field is None else json.dumps(_bare(field["type"]))


def _bare(kind: Json) -> Json:
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {field["name"]: _bare(field["type"]) for field in kind["fields"]}
    return {name: _bare(kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind}


def _loosened(schema: Json, required: Sequence[str]) -> Json:
    """Every column may be null, but for those that the sink itself refuses nulls in."""
    fields = [{**field, "nullable": field["name"] not in required} for field in schema["fields"]]
    return {**schema, "fields": fields}


def _check_partitions(schema: Json, partition_by: Sequence[str]) -> None:
    for field in schema["fields"]:
        if field["name"] in partition_by and field["type"] not in PARTITION_KINDS:
            raise ConfigError(
                f"the partition column {field['name']!r} is {json.dumps(field['type'])}: needed one of "
                f"{', '.join(PARTITION_KINDS)}, which are written in one way only"
            )


def _words(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
