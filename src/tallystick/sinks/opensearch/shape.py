"""How a row must look for the bulk request: its id, itself as JSON, and whether it holds what JSON cannot.

Spark makes the JSON, in the JVM: rows never become Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_NO_ID = ("binary", "array", "map", "struct", "variant")
_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def shaped(schema: StructType, column: Callable[[str], Column], id_columns: Sequence[str]) -> list[Column]:
    """``id`` (null if rows are appended), ``document`` and ``not_finite``."""
    from pyspark.sql import functions as f

    names = schema.fieldNames()
    if "_id" in names:
        raise ConfigError(
            "opensearch: the rows have a column _id, which a document cannot have: rename it, and name it id="
        )
    document = f.to_json(f.struct(*(column(name).alias(name) for name in names)), _JSON)
    reals = [each.name for each in schema.fields if each.dataType.simpleString() in ("float", "double")]
    not_finite = [f.isnan(column(name)) | (f.abs(column(name)) == float("inf")) for name in reals]
    none = f.lit(False)
    return [
        _id(schema, column, id_columns).alias("id"),
        document.alias("document"),
        f.coalesce(reduce(lambda one, other: one | other, not_finite, none), none).alias("not_finite"),
    ]


def _id(schema: StructType, column: Callable[[str], Column], id_columns: Sequence[str]) -> Column:
    """Several columns become a JSON list: what is joined without quotes could be taken for another."""
    from pyspark.sql import functions as f

    for name in id_columns:
        if name not in schema.fieldNames():
            raise ConfigError(
                f"opensearch: the id column {name!r} is not in the rows, which have {schema.fieldNames()}"
            )
        kind = schema[name].dataType.simpleString()
        if kind.startswith(_NO_ID):
            raise ConfigError(f"opensearch: the id column {name!r} is {kind}: needed text, a number, a date or a time")
    parts = [column(name).cast("string") for name in id_columns]
    if not parts:
        return f.lit(None).cast("string")
    if len(parts) == 1:
        return parts[0]
    complete = reduce(lambda one, other: one & other, (part.isNotNull() for part in parts))
    return f.when(complete, f.to_json(f.array(*parts)))
