"""The shipped contract, run for the Delta sink; read with deltalake, which goes by the table's log alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema

from tallystick.records import Json
from tallystick.sinks import Delta
from tallystick.testing import SinkContract


class DeltaContract(SinkContract):
    partition_by: tuple[str, ...] = ()

    def make_sink(self, tmp_path: Path) -> Delta:
        fields = [field if field.name != "day" else pa.field("day", pa.date32()) for field in self.rows(0, 1).schema]
        DeltaTable.create(
            str(tmp_path / "t"), Schema.from_arrow(pa.schema(fields)), partition_by=list(self.partition_by)
        )
        return Delta(tmp_path / "t", partition_by=self.partition_by)

    def read_rows(self, sink: Delta) -> Sequence[Json]:
        table = DeltaTable(str(sink.path)).to_pyarrow_table()
        return table.select(self.rows(0, 1).schema.names).to_pylist()  # type: ignore[no-any-return]

    def expire(self, sink: Delta, committable: Json) -> bool:
        sink.staging.discard(sink.staging.locate(committable["dir"]))
        return True

    @contextlib.contextmanager
    def unmounted(self, sink: Delta) -> Iterator[None]:
        away = sink.path.with_name("away")
        sink.path.rename(away)
        sink.path.mkdir()
        yield
        sink.path.rmdir()
        away.rename(sink.path)

    def break_connection(self, sink: Delta) -> contextlib.AbstractContextManager[None]:
        return self.unmounted(sink)

    def leftovers(self, sink: Delta) -> Sequence[str]:
        return [str(path) for path in sink.staging.root.glob("*/*")]


class TestPlain(DeltaContract):
    pass


class TestPartitioned(DeltaContract):
    """By text with characters that folders cannot hold, by null, and by a date, which reaches the sink as text."""

    partition_by = ("kind", "day")
    values = ("a", None, "x/y=z ä%", "b")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = range(start, start + count)
        kinds = pa.array([self.values[n % 4] for n in numbers], pa.string())
        days = pa.array([f"2026-01-{n % 3 + 1:02d}" for n in numbers], pa.string())
        return super().rows(start, count).append_column("kind", kinds).append_column("day", days)

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        column = batch.schema.get_field_index("day")
        return batch.set_column(column, "day", batch["day"].cast(pa.date32())).to_pylist()  # type: ignore[no-any-return]
