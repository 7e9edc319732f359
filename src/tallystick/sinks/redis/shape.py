"""Rows as the arguments of a command, checked when the job is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError
from tallystick.sinks.redis.rows import ARGUMENTS, FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def shaped(schema: StructType, column: Callable[[str], Column], command: str) -> Sequence[Column]:
    """Numbers and times as text, what is nested as JSON, bytes as they are."""
    names = schema.fieldNames()
    needed = ("key",) if command in FIELDS else ARGUMENTS[command]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigError(
            f"redis: {command} needs the columns {', '.join(needed)}, found {', '.join(names)}. select them, such as "
            f"select=['app AS key', 'pv AS {needed[-1]}']"
        )
    if command in FIELDS and len(names) == 1:
        raise ConfigError(f"redis: {command} needs the key and at least one more column, which becomes a field")
    types = {field.name: field.dataType for field in schema.fields}
    _check_numbers(command, types)
    wanted = names if command in FIELDS else list(needed)
    return [_as_text(column(name), types[name]).alias(name) for name in wanted]


def _check_numbers(command: str, types: dict[str, DataType]) -> None:
    from pyspark.sql.types import IntegralType, NumericType

    if command == "incrby" and not isinstance(types["value"], IntegralType):
        raise ConfigError(f"redis: incrby adds whole numbers: value is {types['value'].simpleString()}")
    if command == "zadd" and not isinstance(types["score"], NumericType):
        raise ConfigError(f"redis: zadd needs a number as score, found {types['score'].simpleString()}")


def _as_text(value: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    if isinstance(kind, BinaryType):
        return value
    if isinstance(kind, ArrayType | MapType | StructType):
        return F.to_json(value)
    return value.cast("string")
