"""The shipped contract, run for the sinks that need no server."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks import Files, IdempotentSink, Memory, SliceContext, Stdout
from tallystick.sinks.base import JobContext
from tallystick.sinks.staged import StagedSink, lower
from tallystick.testing import SinkContract
from tallystick.testing.doomed import commit_and_die
from tallystick.testing.sinks import context


class TestMemory(SinkContract):
    held_by_target = False

    def make_sink(self, tmp_path: Path) -> Memory:
        return Memory(str(tmp_path))

    def read_rows(self, sink: Memory) -> Sequence[Json]:
        return sink.rows()


class FilesContract(SinkContract):
    """Readers are as naive as can be: every file below the folder, hidden or not, that has the format's extension."""

    extension = ""

    def read_rows(self, sink: Files) -> Sequence[Json]:
        return [row for file in sink.path.rglob(f"*{self.extension}") for row in self.read_file(file)]

    def read_file(self, file: Path) -> list[Json]:
        return file.read_text().splitlines()

    def expire(self, sink: Files, committable: Json) -> bool:
        sink.staging.discard(sink.staging.locate(committable["dir"]))
        return True

    @contextlib.contextmanager
    def unmounted(self, sink: Files) -> Iterator[None]:
        away = sink.path.with_name("away")
        sink.path.rename(away)
        sink.path.mkdir()
        yield
        sink.path.rmdir()
        away.rename(sink.path)

    def break_connection(self, sink: Files) -> contextlib.AbstractContextManager[None]:
        return self.unmounted(sink)

    def leftovers(self, sink: Files) -> Sequence[str]:
        return [str(path) for path in sink.staging.root.glob("*/*")]


class TestParquet(FilesContract):
    extension = ".parquet"

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out")

    def read_file(self, file: Path) -> list[Json]:
        return pq.read_table(file, partitioning=None).to_pylist()  # type: ignore[no-any-return]


class TestPartitionedParquet(FilesContract):
    """Values of every sort: plain, null, and with characters that must be escaped."""

    values = ("a", None, "x/y=z ä%", "b")

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", partition_by=["kind"])

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        kinds = [self.values[n % 4] for n in range(start, start + count)]
        return super().rows(start, count).append_column("kind", pa.array(kinds, pa.string()))

    def read_rows(self, sink: Files) -> Sequence[Json]:
        partitioning = ds.partitioning(pa.schema([("kind", pa.string())]), flavor="hive")
        return ds.dataset(sink.path, partitioning=partitioning).to_table().to_pylist()  # type: ignore[no-any-return]


class TestOrc(FilesContract):
    extension = ".orc"

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="orc")

    def read_file(self, file: Path) -> list[Json]:
        return orc.read_table(file).to_pylist()  # type: ignore[no-any-return]


class LinesContract(FilesContract):
    column = "value"

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        lines = [f'{{"id":{n},"name":"räw"}}' for n in range(start, start + count)]
        return pa.RecordBatch.from_pydict({self.column: pa.array(lines, pa.string())})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column(0).to_pylist()  # type: ignore[no-any-return]


class TestJson(LinesContract):
    extension = ".json"

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="json")


class TestCsvWithHeader(LinesContract):
    extension = ".csv"
    column = "id,name"

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="csv", header=True)

    def read_file(self, file: Path) -> list[Json]:
        header, *rows = file.read_text().splitlines()
        assert header == self.column
        return list(rows)


class TestGzippedText(LinesContract):
    extension = ".txt.gz"

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="text", compression="gzip")

    def read_file(self, file: Path) -> list[Json]:
        return gzip.decompress(file.read_bytes()).decode().splitlines()


class StagedContract(SinkContract):
    """Idempotent and plain sinks: the transaction lives in the staging folder beside the sink."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "contract-staging"

    def expire(self, sink: Any, committable: Json) -> bool:
        staging = StagedSink(sink, self.folder).staging
        staging.discard(staging.locate(committable["dir"]))
        return True

    def leftovers(self, sink: Any) -> Sequence[str]:
        return [str(path) for path in self.folder.glob("*/*")]


class TestStdout(StagedContract):
    """At-least-once, and the contract does not see the difference: it kills before and after a commit, not within.

    `test_a_crash_between_apply_and_its_mark` does, and shows the repetition.
    """

    @pytest.fixture(autouse=True)
    def _output(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd
        self.seen: list[str] = []

    def make_sink(self, tmp_path: Path) -> Stdout:
        return Stdout(format="text")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": pa.array([f"row {n}" for n in range(start, start + count)])})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column(0).to_pylist()  # type: ignore[no-any-return]

    def read_rows(self, sink: Stdout) -> Sequence[Json]:
        self.seen += self.capfd.readouterr().out.splitlines()
        return self.seen


class Keyed(IdempotentSink):
    """Rows in SQLite under their id: writing the same row again changes nothing."""

    facts = SinkFacts("keyed", Kind.IDEMPOTENT, Mode.EXACTLY_ONCE, "upsert by key")

    def __init__(self, path: Path, reachable: Path | None = None) -> None:
        self.path = path
        self.reachable = reachable

    @property
    def target(self) -> str:
        return f"keyed:{self.path}"

    def check(self, job: JobContext) -> None:
        self.query("create table if not exists t (id integer primary key, name text)")

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        if self.reachable is not None and not self.reachable.exists():
            raise ConnectionRefusedError("nobody listens")
        for batch in batches:
            for row in batch.to_pylist():
                self.query("insert or replace into t values (:id, :name)", row)

    def query(self, statement: str, row: Json = ()) -> list[Json]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, row).fetchall()


class TestIdempotent(StagedContract):
    def make_sink(self, tmp_path: Path) -> Keyed:
        (tmp_path / "up").touch()
        return Keyed(tmp_path / "t.sqlite", tmp_path / "up")

    def read_rows(self, sink: Keyed) -> Sequence[Json]:
        return [{"id": number, "name": name} for number, name in sink.query("select id, name from t")]

    @contextlib.contextmanager
    def down(self, up: Path) -> Iterator[None]:
        up.unlink()
        yield
        up.touch()

    def break_connection(self, sink: Keyed) -> contextlib.AbstractContextManager[None]:
        assert sink.reachable is not None
        return self.down(sink.reachable)


class DyingKeyed(Keyed):
    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        super().apply(context, batches)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingStdout(Stdout):
    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        super().apply(context, batches)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["idempotent", "plain"])
def test_a_crash_between_apply_and_its_mark(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The one window that staging leaves open: idempotent sinks are exactly-once in it, plain ones repeat."""
    contract: Any = TestIdempotent() if kind == "idempotent" else TestStdout()
    table = tmp_path / "t.sqlite"
    doomed = lower(DyingKeyed(table) if kind == "idempotent" else DyingStdout("text"), tmp_path / "s")
    healthy = lower(Keyed(table) if kind == "idempotent" else Stdout("text"), tmp_path / "s")
    healthy.check(JobContext())
    committable = contract.prepare(healthy, context(), contract.rows(0, 3))
    commit_and_die(doomed, committable, tmp_path)
    assert healthy.recover_and_commit(committable) is Outcome.COMMITTED
    assert healthy.recover_and_commit(committable) is Outcome.ALREADY_COMMITTED
    if kind == "idempotent":
        assert Keyed(table).query("select id from t") == [(0,), (1,), (2,)]
    else:
        assert capfd.readouterr().out.splitlines() == ["row 0", "row 1", "row 2"] * 2
