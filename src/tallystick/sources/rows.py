"""Python rows as Arrow: how a schema is inferred, and what is refused.

Used on the driver when a source is declared, and on executors when a function makes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Row: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
"""A dictionary by column name, or a tuple in the order of the schema."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """How Spark wants this schema from a Python data source: timestamps with a zone are in UTC."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise ConfigError(f"a schema cannot be carried as arrow: {error}") from error


def parse_ddl(words: str) -> StructType:
    """A schema such as ``id long, app string``. Needs a running Spark, whose parser it is."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(words)
    except PySparkException as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"not a schema: {words!r} ({first_line}). needed such as 'id long, app string'") from error
    if not isinstance(parsed, StructType):
        raise ConfigError(f"not a schema: {words!r} is a single type. needed such as 'id long, app string'")
    return parsed


def infer_schema(rows: Sequence[Row]) -> StructType:
    """The schema of dictionaries: every key of any row is a column, in the order in which it is first seen."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"row {number} is a {type(row).__name__}: only dictionaries name their columns, give schema="
            )
        columns.update((key, []) for key in row if key not in columns)
    for key, values in columns.items():
        values.extend(row.get(key) for row in rows if isinstance(row, Mapping))
    fields = [pa.field(key, _infer_type(key, values)) for key, values in columns.items()]
    try:
        return from_arrow_schema(pa.schema(fields))
    except PySparkException as error:
        raise ConfigError(f"a column has no Spark type: {error}. give schema=") from error


def _infer_type(column: str, values: list[Any]) -> pa.DataType:
    try:
        found = pa.array(values).type
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ConfigError(f"column {column!r} holds values of different types ({error}): give schema=") from error
    if pa.types.is_null(found):
        raise ConfigError(f"column {column!r} is empty in every row, so its type is not known: give schema=")
    return found


def to_batch(rows: Sequence[Row], schema: pa.Schema, first: int = 0) -> pa.RecordBatch:
    """Rows in the given schema. ``first`` is the offset of the first one, for the text of an error.

    Strict: an unknown key, a tuple of another length, a value of another type or an empty value where the schema
    allows none is a `ConfigError`. A missing key is an empty value. A datetime without a zone is taken as UTC, so
    that the rows do not depend on the machine.
    """
    names = schema.names
    dictionaries = [_as_dictionary(row, names, first + number) for number, row in enumerate(rows)]
    try:
        batch = pa.RecordBatch.from_pylist(dictionaries, schema=schema)
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"{_first_misfit(dictionaries, schema, first)} ({error}): change the rows or the schema"
        ) from error
    for field, column in zip(schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise ConfigError(
                f"column {field.name!r} must not be empty, but {column.null_count} rows have no value for it"
            )
    return batch


def _as_dictionary(row: Row, names: list[str], offset: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        unknown = row.keys() - set(names)
        if unknown:
            raise ConfigError(f"row {offset} has {sorted(map(str, unknown))}, which the schema {names} does not")
        return row
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise ConfigError(f"row {offset} is a {type(row).__name__}, needed a dictionary or a tuple")
    if len(row) != len(names):
        raise ConfigError(f"row {offset} has {len(row)} values, the schema has {len(names)}: {names}")
    return dict(zip(names, row, strict=True))


def _first_misfit(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, first: int) -> str:
    for number, row in enumerate(rows):
        for field in schema:
            try:
                pa.array([row.get(field.name)], field.type)
            except (pa.ArrowException, TypeError, OverflowError, ValueError):
                return f"row {first + number}: {field.name} = {row.get(field.name)!r} is no {field.type}"
    return "the rows do not fit the schema"
