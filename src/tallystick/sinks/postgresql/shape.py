"""Rows as PostgreSQL takes them from CSV, and the types of a table that is made for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

SIMPLE = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "variant": "jsonb",
}
_NUMBERS = ("smallint", "integer", "bigint", "real", "double precision", "numeric")
_TEXTS = ("text", "character varying", "character", "citext")
_FITS = {
    "boolean": ("boolean",),
    "date": ("date", "timestamp without time zone", "timestamp with time zone"),
    "timestamp with time zone": ("timestamp with time zone", "timestamp without time zone", "date"),
    "timestamp without time zone": ("timestamp without time zone", "timestamp with time zone", "date"),
    "bytea": ("bytea",),
    "jsonb": ("jsonb", "json"),
}


def type_of(kind: DataType) -> str | None:
    """PostgreSQL's type for one of Spark's; None if there is none."""
    from pyspark.sql.types import ArrayType, CharType, DecimalType, MapType, StructType, VarcharType

    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType | MapType | StructType):
        return "jsonb"
    if isinstance(kind, CharType | VarcharType):
        return "text"
    return SIMPLE.get(kind.simpleString().split(" collate ")[0])


def fits(ours: str, theirs: str) -> bool:
    """Whether a column of the table can take what the rows have; a text may become anything, the server reads it."""
    base = theirs.split("(")[0].strip()
    if ours == "text" or base in _TEXTS:
        return True
    if ours.split("(")[0] in _NUMBERS:
        return base in _NUMBERS
    return base in _FITS[ours]


def shaped(
    schema: StructType, column: Callable[[str], Column], key: Sequence[str], delete_flag: str | None
) -> Sequence[Column]:
    """Every column under its name: bytes as hexadecimal text, whatever is nested as JSON."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, BooleanType

    names = schema.fieldNames()
    missing = [name for name in [*key, *([delete_flag] if delete_flag else [])] if name not in names]
    if missing:
        raise ConfigError(f"postgresql: the rows have no column {missing[0]!r}, found {', '.join(names)}")
    made = []
    for field in schema.fields:
        kind, value = type_of(field.dataType), column(field.name)
        if kind is None:
            raise ConfigError(
                f"postgresql: the column {field.name} is {field.dataType.simpleString()}, which has no counterpart: "
                f"select something else, such as CAST({field.name} AS STRING) AS {field.name}"
            )
        if field.name == delete_flag and not isinstance(field.dataType, BooleanType):
            raise ConfigError(f"postgresql: the column {field.name} says what is deleted: needed boolean, found {kind}")
        if isinstance(field.dataType, BinaryType):
            value = F.concat(F.lit("\\x"), F.hex(value))
        elif kind == "jsonb":
            value = F.to_json(value)
        made.append(value.alias(field.name))
    return made
