"""A 64-bit hash of each row, computed by Spark beside the row, so that no Python ever loops over rows.

The hash is Spark's ``xxhash64`` over all columns. Two things that it does not see are added: it skips nulls, so that
``(null, 1)`` and ``(1, null)`` would be equal, hence a bit mask of the nulls; and it takes no maps, hence nested
columns are hashed as JSON, which also tells nulls inside them apart.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

_MASK_BITS = 62


def row_hash(columns: Sequence[tuple[Column, DataType, bool]]) -> Column:
    """The hash of a row made of these columns, each with its type and whether it may be null."""
    hashed = [_hashable(column, kind) for column, kind, _ in columns]
    nullable = [column for column, _, may_be_null in columns if may_be_null]
    for start in range(0, len(nullable), _MASK_BITS):
        bits = [
            F.when(column.isNull(), F.lit(1 << bit)).otherwise(F.lit(0)).cast("long")
            for bit, column in enumerate(nullable[start : start + _MASK_BITS])
        ]
        hashed.append(reduce(lambda left, right: left.bitwiseOR(right), bits))
    return F.xxhash64(*hashed) if hashed else F.lit(0).cast("long")


def _hashable(column: Column, kind: DataType) -> Column:
    if isinstance(kind, VariantType):
        return column.cast("string")
    if isinstance(kind, ArrayType | MapType | StructType):
        return F.to_json(F.struct(column.alias("v")), {"ignoreNullFields": "false"})
    return column
