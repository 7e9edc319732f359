"""Slices for the tests of the file sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tallystick.records import Json
from tallystick.sinks import Files, SliceContext
from tallystick.sinks.base import JobContext
from tallystick.testing.sinks import context


def rows(start: int, count: int, kinds: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    columns = {"id": pa.array(numbers, pa.int64())}
    return pa.RecordBatch.from_pydict(columns | ({"kind": [f"k{n % kinds}" for n in numbers]} if kinds else {}))


def made(path: Path, **settings: Any) -> Files:
    sink = Files(path, **settings)
    sink.check(JobContext())
    return sink


def prepare(sink: Files, *batches: pa.RecordBatch, where: SliceContext | None = None) -> Json:
    transaction = sink.begin_transaction(where or context())
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def published(path: Path) -> list[int]:
    return sorted(ds.dataset(path, format="parquet").to_table().to_pydict().get("id", []))
