"""How Spark's types become fields of an index, and which fields may refuse a value.

A field of the right type takes every value of a column. One that has to parse it (text into a date) may refuse a row,
and would do so only after the decision; so such a pair is refused at the start, unless there is a dead-letter index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tallystick.records import Json

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TEXT = ("text", "keyword", "wildcard", "match_only_text")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "string": _TEXT,
    "tinyint": ("byte", "short", "integer", "long", "float", "double", "scaled_float", *_TEXT),
    "smallint": ("short", "integer", "long", "float", "double", "scaled_float", *_TEXT),
    "int": ("integer", "long", "float", "double", "scaled_float", *_TEXT),
    "bigint": ("long", "float", "double", "scaled_float", *_TEXT),
    "float": ("float", "double", *_TEXT),
    "double": ("double", *_TEXT),
    "decimal": ("double", "scaled_float", *_TEXT),
    "boolean": ("boolean", *_TEXT),
    "binary": ("binary", *_TEXT),
    "date": ("date", "date_nanos", *_TEXT),
    "timestamp": ("date", "date_nanos", *_TEXT),
    "timestamp_ntz": ("date", "date_nanos", *_TEXT),
    "map": ("object", "flat_object", "flattened"),
}
_MADE: Mapping[str, Json] = {
    "string": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}},
    "tinyint": {"type": "byte"},
    "smallint": {"type": "short"},
    "int": {"type": "integer"},
    "bigint": {"type": "long"},
    "float": {"type": "float"},
    "double": {"type": "double"},
    "decimal": {"type": "double"},
    "boolean": {"type": "boolean"},
    "binary": {"type": "binary"},
    "date": {"type": "date"},
    "timestamp": {"type": "date"},
    "timestamp_ntz": {"type": "date"},
    "map": {"type": "object"},
}


def mapping_for(schema: StructType) -> Json:
    """The mapping of an index that is made for these rows."""
    return {"properties": {field.name: _field_for(field.dataType) for field in schema.fields}}


def misfits(schema: StructType, mapping: Json, path: str = "") -> Iterator[str]:
    """In words, each column whose values the index might refuse."""
    properties = mapping.get("properties", {})
    strict = str(mapping.get("dynamic", "true")).startswith("strict")
    for field in schema.fields:
        name, kind = f"{path}{field.name}", _element(field.dataType)
        found = properties.get(field.name)
        if found is None:
            if strict:
                yield f"the index has no field {name!r}, and its mapping is strict"
        elif _name(kind) == "struct":
            if "properties" not in found:
                yield f"the field {name!r} is {found.get('type')}, and the rows have a struct"
            else:
                yield from misfits(kind, found, f"{name}.")  # type: ignore[arg-type]
        elif found.get("type", "object") not in _TAKES.get(_name(kind), ()):
            yield f"the field {name!r} is {found.get('type', 'object')}, and the rows have {kind.simpleString()}"


def _field_for(kind: DataType) -> Json:
    inner = _element(kind)
    return mapping_for(inner) if _name(inner) == "struct" else _MADE.get(_name(inner), {"type": "object"})  # type: ignore[arg-type]


def _element(kind: DataType) -> DataType:
    """A field holds one value or many of them alike."""
    from pyspark.sql.types import ArrayType

    while isinstance(kind, ArrayType):
        kind = kind.elementType
    return kind


def _name(kind: DataType) -> str:
    return kind.simpleString().partition("<")[0].partition("(")[0]
