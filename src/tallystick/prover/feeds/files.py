"""Files of a folder: one file per lane and epoch, dated so that Spark takes them epoch by epoch."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.prover.feeds.base import Feed, Rows
from tallystick.prover.place import Place
from tallystick.prover.rows import row_of, text_of
from tallystick.prover.workload import LANES
from tallystick.sources import Files
from tallystick.sources.rows import arrow_schema, parse_ddl, to_batch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FIRST_DATE_S = 1_700_000_000


class FilesFeed(Feed):
    kind = "files"

    @classmethod
    def redirect(cls, source: Files, rows: Rows, place: Place) -> Files:
        kept = {name: value for name, value in source.options.items() if name != "pathGlobFilter"}
        return replace(source, path=place.input(rows.source), max_files_per_epoch=LANES, options=kept)

    @classmethod
    def fill(cls, source: Files, rows: Rows, place: Place) -> None:
        folder = place.input(rows.source)
        folder.mkdir(parents=True)
        for epoch in range(rows.workload.epochs):
            for lane in range(LANES):
                indexes = [index for index in rows.workload.epoch(epoch) if rows.workload.lane(index) == lane]
                data = _encoded(source, rows, indexes)
                path = folder / f"epoch-{epoch:06d}-{lane}.{source.format}"
                path.write_bytes(data)
                os.utime(path, (_FIRST_DATE_S + epoch * LANES + lane,) * 2)


def _encoded(source: Files, rows: Rows, indexes: Sequence[int]) -> bytes:
    records = [rows.record(index) for index in indexes]
    if source.format == "text":
        made = [text_of(record) if rows.made is None else _line(rows.made(record)) for record in records]
        return "".join(f"{line}\n" for line in made).encode()
    schema = parse_ddl(source.schema) if isinstance(source.schema, str) else source.schema
    if schema is None:
        raise TypeError(f"a {source.format} source without a schema")
    filled = [row_of(record, schema) if rows.made is None else rows.made(record) for record in records]
    if source.format == "json":
        return "".join(json.dumps(row, default=_plain) + "\n" for row in filled).encode()
    if source.format == "csv":
        return _csv(filled, schema, source.options)
    return _columns(source.format, filled, schema)


def _line(made: Any) -> str:
    return made if isinstance(made, str) else json.dumps(made, default=_plain)


def _csv(rows: Sequence[Any], schema: StructType, options: Any) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=options.get("sep", ","), lineterminator="\n")
    if options.get("header", "false").lower() == "true":
        writer.writerow(schema.fieldNames())
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in schema.fieldNames()])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return _plain(value) if isinstance(value, datetime | date | bytes) else value


def _columns(format_name: str, rows: Sequence[Any], schema: StructType) -> bytes:
    from pyarrow import orc, parquet

    table = pa.Table.from_batches([to_batch(rows, arrow_schema(schema))])
    sink = pa.BufferOutputStream()
    if format_name == "parquet":
        parquet.write_table(table, sink)
    else:
        orc.write_table(table, sink)
    return bytes(sink.getvalue())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, date | Path):
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no place in JSON")
