"""Rows as Kafka has them: the columns of Spark's own Kafka sink, checked when the job is declared.

Other columns are left out, as Spark's sink does: the rows of its Kafka source, which have more, can be passed through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

KNOWN = ("key", "value", "headers", "topic", "partition")


def shaped(schema: StructType, column: Callable[[str], Column], topic: str | None) -> Sequence[Column]:
    """key and value as bytes; headers, topic and partition only where the rows have them."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

    found = {name.lower(): name for name in schema.fieldNames()}
    types = {name.lower(): field.dataType for name, field in zip(schema.fieldNames(), schema.fields, strict=True)}
    if "value" not in found:
        raise ConfigError(
            f"kafka: the rows have no column 'value', found {', '.join(schema.fieldNames())}. select one, such as "
            "select=['CAST(id AS STRING) AS key', 'to_json(struct(*)) AS value']"
        )
    for name in ("key", "value"):
        if name in found:
            _need(name, types[name], (StringType, BinaryType), "a string or binary")
    if "topic" in found:
        _need("topic", types["topic"], (StringType,), "a string")
    elif topic is None:
        raise ConfigError(
            "kafka: no topic: name one, ts.sinks.Kafka(servers, 'topic'), or give the rows a column 'topic'"
        )
    if "partition" in found:
        _need("partition", types["partition"], (IntegerType,), "an int")
    if "headers" in found:
        headers = types["headers"]
        pairs = headers.elementType if isinstance(headers, ArrayType) else None
        fits = isinstance(pairs, StructType) and [(f.name.lower(), type(f.dataType)) for f in pairs.fields] == [
            ("key", StringType),
            ("value", BinaryType),
        ]
        if not fits:
            raise ConfigError(
                f"kafka: the column headers is {headers.simpleString()}, needed array<struct<key:string,value:binary>>"
            )
    wanted = [name for name in KNOWN if name in found and not (name == "topic" and topic is not None)]
    return [
        (column(found[name]).cast("binary") if name in ("key", "value") else column(found[name])).alias(name)
        for name in wanted
    ]


def _need(name: str, found: DataType, types: tuple[type, ...], needed: str) -> None:
    if not isinstance(found, types):
        raise ConfigError(f"kafka: the column {name} is {found.simpleString()}, needed {needed}")
