"""Which Spark types a CQL type can hold, value by value: what passes here is never refused for its type later.

No narrowing and no parsing of numbers: a value that might not fit would be found only after the decision. Text into
uuid and ascii is allowed, because those are checked row by row before it (`rows.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FROM: Mapping[str, tuple[str, ...]] = {
    "string": ("text", "varchar", "ascii", "uuid", "timeuuid"),
    "tinyint": ("tinyint", "smallint", "int", "bigint", "varint"),
    "smallint": ("smallint", "int", "bigint", "varint"),
    "int": ("int", "bigint", "varint"),
    "bigint": ("bigint", "varint"),
    "float": ("float", "double"),
    "double": ("double",),
    "boolean": ("boolean",),
    "binary": ("blob",),
    "date": ("date",),
    "timestamp": ("timestamp",),
    "timestamp_ntz": ("timestamp",),
}
_MADE: Mapping[str, str] = {"string": "text", "binary": "blob", "timestamp_ntz": "timestamp"}
_FROZEN = re.compile(r"frozen<(.*)>")


def fits(spark: str, cql: str) -> bool:
    """Whether every value of a Spark type (as its ``simpleString``) can be written to a column of a CQL type."""
    frozen = _FROZEN.fullmatch(cql)
    if frozen is not None:
        return fits(spark, frozen[1])
    if spark.startswith("decimal("):
        return cql == "decimal" or (cql == "varint" and spark.endswith(",0)"))
    if spark.startswith("array<"):
        held = re.fullmatch(r"(?:list|set)<(.*)>", cql)
        return held is not None and fits(spark[6:-1], held[1])
    if spark.startswith("map<"):
        held = re.fullmatch(r"map<(\w+), (.*)>", cql)
        key, _, value = spark[4:-1].partition(",")
        return held is not None and fits(key, held[1]) and fits(value, held[2])
    return cql in _FROM.get(spark, ())


def made_for(spark: str) -> str | None:
    """The CQL type of a column that is made for a Spark type; None if there is none that holds it."""
    if spark.startswith("decimal("):
        return "decimal"
    if spark.startswith("array<"):
        held = made_for(spark[6:-1])
        return None if held is None else f"list<{_inside(held)}>"
    if spark.startswith("map<"):
        key, _, value = spark[4:-1].partition(",")
        parts = made_for(key), made_for(value)
        return None if None in parts else f"map<{parts[0]}, {_inside(str(parts[1]))}>"
    return _MADE.get(spark, spark) if spark in _FROM else None


def _inside(cql: str) -> str:
    return f"frozen<{cql}>" if "<" in cql else cql
