"""Rows on the driver's standard output: for a first look, and for pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tallystick.errors import ConfigError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import PlainSink, SliceContext
from tallystick.sinks.letters import documents

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class Stdout(PlainSink):
    """Print each row on a line of its own: as JSON, or as text if the rows are one string column.

    ``limit`` bounds how many rows of each slice are printed; the rest is counted on one last line. Each slice is one
    write, so lines of different slices do not mix. What a terminal has shown cannot be taken back: after a crash rows
    may be printed again.
    """

    facts = SinkFacts("stdout", Kind.PLAIN, Mode.AT_LEAST_ONCE, "printed after the decision, again after a crash")

    def __init__(self, format: str = "json", limit: int | None = None) -> None:  # noqa: A002 - the word that Spark uses
        if format not in ("json", "text"):
            raise ConfigError(f"unknown format {format!r} for standard output: needed json or text")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"limit needs a number of rows above 0, or None for all, found {limit!r}")
        self.format = format
        self.limit = limit

    @property
    def target(self) -> str:
        return "stdout"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType

        if self.format == "json":
            return [f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("value")]
        if len(schema.fields) != 1 or not isinstance(schema.fields[0].dataType, StringType):
            raise ConfigError(
                f"standard output in format 'text' takes one string column, found {schema.simpleString()}: select one, "
                "or use format='json'"
            )
        return None

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": documents(rows)})

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        sys.stdout.write("".join(self._lines(batches)))
        sys.stdout.flush()

    def _lines(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        left = sys.maxsize if self.limit is None else self.limit
        hidden = 0
        for batch in batches:
            for value in batch.slice(0, left).column(0).to_pylist():
                yield ("" if value is None else value) + "\n"
            hidden += max(0, batch.num_rows - left)
            left = max(0, left - batch.num_rows)
        if hidden:
            yield f"… and {hidden} more rows\n"
