"""How a row must look for a format, decided on the driver when the job starts.

JSON and CSV are put into words by Spark in the JVM, where `to_json` and `to_csv` are fast and have exactly Spark's
meaning; executors then only join lines. Partition values are cast to text there too, so that folder names are those
that Spark itself would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from tallystick.sinks.files.settings import Settings

    ColumnOf = Callable[[str], Column]

NULL_IN = "tallystick_null_in"
"""Names the first required column that is null in this row; only where Spark has folded the columns into one."""

_MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
DEFAULTS = {
    "json": _MICROSECONDS,
    "csv": {
        **_MICROSECONDS,
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}
"""Where Spark's own defaults would change what is written, or hide it from others: it cuts timestamps to milliseconds
and trims CSV values, and it escapes quotes with a backslash where pandas, DuckDB and spreadsheets expect them doubled
(RFC 4180)."""

_HOLDABLE = frozenset(
    f"{kind}Type"
    for kind in (
        *("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Decimal"),
        *("String", "Char", "Varchar", "Date", "Timestamp", "TimestampNTZ"),
    )
)
"""Spark's types that every format, and every folder name, can hold. Others (intervals, variants, times, void) have no
form that Spark, pandas and DuckDB all read back."""


def file_columns(schema: StructType, column: ColumnOf, settings: Settings) -> Sequence[Column] | None:
    """The columns that `Files.write` takes, or None if rows can stay as they are. Refuses what cannot be held."""
    check_names(schema, settings)
    data = [field.name for field in schema.fields if field.name not in settings.partition_by]
    for field in schema.fields:
        check_type(field.name, field.dataType, settings.format, field.name in settings.partition_by)
    if settings.format == "text":
        _check_one_text_column(schema, data)
    if settings.format == "csv":
        _check_no_blank_lines(schema, data, settings)
    if settings.format in ("json", "csv"):
        return [_words(data, column, settings), *_partitions(column, settings), *_null_in(column, settings)]
    if settings.partition_by:
        return [*(column(name).alias(name) for name in data), *_partitions(column, settings)]
    return None


def check_names(schema: StructType, settings: Settings) -> None:
    names = [field.name for field in schema.fields]
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in names if lowered.count(name.lower()) > 1})
    if twice:
        raise ConfigError(
            f"columns that differ by nothing, or only by case, cannot go to {settings.format} files: found "
            f"{', '.join(twice)}. rename them"
        )
    for setting, wanted in (("partition_by", settings.partition_by), ("required", settings.required)):
        missing = [name for name in wanted if name not in names]
        if missing:
            raise ConfigError(f"{setting} names {', '.join(missing)}, but the rows have {', '.join(names)}")
    if set(names) <= set(settings.partition_by):
        raise ConfigError("every column is a partition column, so nothing is left to write: partition by fewer")


def check_type(name: str, kind: DataType, format_: str, partition: bool = False) -> None:
    """Refuse a type that the format cannot hold, naming column, type and remedy."""
    flat = partition or format_ == "csv"
    where = "a partition folder's name" if partition else f"a {format_} file"
    remedy = {True: "use to_json() or cast it to string", False: "cast it to string"}[flat]
    found = _unholdable(kind, flat)
    if found is not None:
        raise ConfigError(
            f"column {name!r} has the type {kind.simpleString()}, and {where} cannot hold {found}: {remedy}"
        )


def _unholdable(kind: DataType, flat: bool) -> str | None:
    """The part of a type that cannot be held, in words; None if all of it can."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return "nested values" if flat else _first_unholdable([field.dataType for field in kind.fields])
    if isinstance(kind, types.ArrayType):
        return "nested values" if flat else _unholdable(kind.elementType, flat)
    if isinstance(kind, types.MapType):
        return "nested values" if flat else _first_unholdable([kind.keyType, kind.valueType])
    if isinstance(kind, types.BinaryType):
        return "binary values" if flat else None
    return None if type(kind).__name__ in _HOLDABLE else kind.simpleString()


def _first_unholdable(kinds: Sequence[DataType]) -> str | None:
    return next(filter(None, (_unholdable(kind, flat=False) for kind in kinds)), None)


def _check_one_text_column(schema: StructType, data: Sequence[str]) -> None:
    from pyspark.sql.types import CharType, StringType, VarcharType

    kinds = [schema[name].dataType for name in data]
    if len(kinds) != 1 or not isinstance(kinds[0], StringType | CharType | VarcharType):
        found = ", ".join(f"{name} {kind.simpleString()}" for name, kind in zip(data, kinds, strict=True))
        raise ConfigError(
            f"a text file holds one string column beside the partition columns, found {found}: select one, or write "
            "format='json'"
        )


def _check_no_blank_lines(schema: StructType, data: Sequence[str], settings: Settings) -> None:
    only = schema[data[0]]
    if len(data) == 1 and only.nullable and only.name not in settings.required and "nullValue" not in settings.options:
        raise ConfigError(
            f"a null in {only.name!r}, the only column, would be a blank line in a csv file, and readers skip those: "
            f"say required=[{only.name!r}], or options={{'nullValue': ...}} with a text for null"
        )


def _words(data: Sequence[str], column: ColumnOf, settings: Settings) -> Column:
    """The row as one string. With a header, the column's name is the header line: it must reach every executor."""
    from pyspark.sql import functions as f

    row = f.struct(*(column(name).alias(name) for name in data))
    options = {**DEFAULTS[settings.format], **settings.options}
    if settings.format == "json":
        return f.to_json(row, options).alias(free_name("value", settings))
    name = header_line(data, settings) if settings.header else free_name("value", settings)
    return f.to_csv(row, options).alias(name)


def header_line(names: Sequence[str], settings: Settings) -> str:
    """The first line of a CSV file, quoted by the same rules as its rows."""
    options = {"sep": ",", "quote": '"', **DEFAULTS["csv"], **settings.options}
    quote, special = options["quote"], (options["sep"], options["quote"], "\n", "\r")
    return options["sep"].join(
        f"{quote}{name.replace(quote, options['escape'] + quote)}{quote}" if any(s in name for s in special) else name
        for name in names
    )


def _partitions(column: ColumnOf, settings: Settings) -> list[Column]:
    return [column(name).cast("string").alias(name) for name in settings.partition_by]


def _null_in(column: ColumnOf, settings: Settings) -> list[Column]:
    from pyspark.sql import functions as f

    if not settings.required:
        return []
    return [f.coalesce(*(f.when(column(name).isNull(), f.lit(name)) for name in settings.required)).alias(NULL_IN)]


def free_name(name: str, settings: Settings) -> str:
    while name in settings.partition_by:
        name += "_"
    return name
