"""Dead letters: what a refused row looks like in the sink for such rows.

A letter is the same whenever it is made: nothing in it depends on the attempt, so that what expired is written again
as it was. ``id`` is different for every letter of a job, and can be the key of a table or an index.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.errors import ConfigError
from tallystick.records import Json

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tallystick.sinks.base import SliceContext

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("job", pa.string()),
        ("sink", pa.string()),
        ("epoch", pa.int64()),
        ("slice", pa.int32()),
        ("reason", pa.string()),
        ("row", pa.string()),
    ]
)
REASON_LETTERS_MAX = 300


def spark_schema() -> StructType:
    """The same, in Spark's types."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    kinds = {pa.string(): StringType, pa.int64(): LongType, pa.int32(): IntegerType}
    return StructType([StructField(field.name, kinds[field.type]()) for field in SCHEMA])


def letters(context: SliceContext, rows: pa.RecordBatch, reasons: Sequence[str], first: int) -> pa.RecordBatch:
    """Letters for refused rows of one slice, which are counted from ``first``."""
    count, epoch = rows.num_rows, context.attempt.epoch
    place = f"{context.job_id}-{context.sink}-{epoch}-{context.slice}"
    columns: list[list[Any]] = [
        [f"{place}-{first + number}" for number in range(count)],
        [context.job_id] * count,
        [context.sink] * count,
        [epoch] * count,
        [context.slice] * count,
        list(reasons),
        [as_json(row) for row in rows.to_pylist()],
    ]
    return pa.record_batch([pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def none() -> pa.RecordBatch:
    """No letter at all, to try out whether a sink takes them."""
    return pa.record_batch([pa.array([], field.type) for field in SCHEMA], SCHEMA)


def need(target: str, setting: str, names: Iterable[str]) -> None:
    """`ConfigError` if a setting of the sink for letters names columns that they do not have."""
    missing = [name for name in names if name not in SCHEMA.names]
    if missing:
        raise ConfigError(
            f"{target} cannot be the sink for dead letters: {setting} names {missing[0]!r}, and letters have the "
            f"columns {', '.join(SCHEMA.names)}"
        )


def documents(rows: pa.RecordBatch) -> pa.Array:
    """Each letter as one JSON object, for sinks that take rows as text."""
    return pa.array([json.dumps(letter, ensure_ascii=False) for letter in rows.to_pylist()], pa.string())


def shortened(reason: str) -> str:
    """So much of a reason as the journal keeps."""
    return reason if len(reason) <= REASON_LETTERS_MAX else reason[: REASON_LETTERS_MAX - 1] + "…"


def as_json(row: Any) -> str:
    """A row as it was given to its sink. Bytes that are no text become ``{"base64": …}``."""
    return json.dumps(row, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Json:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value)
