"""A numbered record as a row of the source's own schema, where the job file does not say how (``prove_input``).

The first whole number takes the record's number, the first text its key; what is left is filled with values that
follow from the number, so that the same record always makes the same row.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tallystick.errors import UnprovenError
from tallystick.prover.workload import Numbered

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

FIRST_MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
_WHOLE = ("long", "integer")


def row_of(record: Numbered, schema: StructType) -> dict[str, Any]:
    """`UnprovenError` if the schema has no room for a number, or a type that is not filled in by itself."""
    kinds = {field.name: field.dataType.typeName() for field in schema.fields}
    texts = [name for name, kind in kinds.items() if kind == "string"]
    number = next((name for name, kind in kinds.items() if kind in _WHOLE), None)
    if number is None and not texts:
        raise UnprovenError(
            f"the records of source {record.source!r} cannot be numbered: its schema has neither a whole number nor a "
            "text",
            "a function prove_input(record) in the job file that returns the row of a record, with its number in it",
        )
    row = {field.name: _filler(record, field.name, field.dataType) for field in schema.fields}
    if number is not None:
        row[number] = record.number
        if texts:
            row[texts[0]] = record.key
    elif len(texts) == 1:
        row[texts[0]] = text_of(record)
    else:
        row[texts[0]], row[texts[1]] = record.key, f"number-{record.number:08d}"
    return row


def text_of(record: Numbered) -> str:
    """A record where there is only a text to hold it: a line of a file, the value of a message."""
    return json.dumps({"number": record.number, "key": record.key, "sequence": record.sequence})


def message_of(record: Numbered, made: Any) -> tuple[bytes | None, bytes]:
    """Key and value of a message. ``prove_input`` gives the value, or a pair of key and value; each as bytes, text or
    something for JSON."""
    if made is None:
        return record.key.encode(), text_of(record).encode()
    if isinstance(made, tuple):
        key, value = made
        return None if key is None else _bytes(key), _bytes(value)
    return record.key.encode(), _bytes(made)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _filler(record: Numbered, column: str, kind: DataType) -> Any:
    name = kind.typeName()
    if name == "string":
        return f"{column}-{record.number}"
    if name in (*_WHOLE, "short", "byte"):
        return record.number % 100
    if name in ("double", "float"):
        return record.number % 100 / 4
    if name.startswith("decimal"):
        return Decimal(record.number % 10)
    if name == "boolean":
        return record.number % 2 == 0
    if name == "timestamp":
        return FIRST_MOMENT + timedelta(seconds=record.number)
    if name == "timestamp_ntz":
        return (FIRST_MOMENT + timedelta(seconds=record.number)).replace(tzinfo=None)
    if name == "date":
        return date(2026, 1, 1) + timedelta(days=record.number % 28)
    if name == "binary":
        return str(record.number).encode()
    raise UnprovenError(
        f"column {column!r} of source {record.source!r} is of type {kind.simpleString()}, which is not filled in by "
        "itself",
        "a function prove_input(record) in the job file that returns the row of a record as a dictionary",
    )
