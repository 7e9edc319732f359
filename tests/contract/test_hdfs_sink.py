"""The shipped contract, run for the HDFS sink on a real NameNode and DataNode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from hdfs_folders import files_below, new_folder, port_of, rows_below
from real_servers import Elsewhere
from tallystick.records import Json
from tallystick.servers import Hdfs
from tallystick.servers.tcp_proxy import TcpProxy
from tallystick.sinks import HDFS
from tallystick.testing import SinkContract


@pytest.fixture(scope="module")
def proxy(hdfs: Hdfs | Elsewhere) -> Iterator[TcpProxy]:
    """Before the NameNode; DataNodes are reached directly."""
    made = TcpProxy(port_of(hdfs.address)).open()
    yield made
    made.close()


class HdfsContract(SinkContract):
    """Readers are as naive as can be: every file below the folder, hidden or not, that has the format's extension."""

    extension = ".parquet"
    address: str
    proxy: TcpProxy

    @pytest.fixture(autouse=True)
    def _server(self, hdfs: Hdfs | Elsewhere, proxy: TcpProxy) -> None:
        self.address, self.proxy = hdfs.address, proxy

    def folder(self) -> str:
        return new_folder(f"hdfs://{self.proxy.address}")

    def read_rows(self, sink: HDFS) -> Sequence[Json]:
        return rows_below(f"{self.address}{sink.path}", self.extension)

    def expire(self, sink: HDFS, committable: Json) -> bool:
        sink.staging.discard(sink.staging.locate(committable["dir"]))
        return True

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.open()

    def break_connection(self, sink: HDFS) -> contextlib.AbstractContextManager[None]:
        return self.cut()

    def leftovers(self, sink: HDFS) -> Sequence[str]:
        return [path for path, _ in files_below(f"{self.address}{sink.staging.root}")]


class TestPartitionedParquet(HdfsContract):
    """Values of every sort: plain, null, and with characters that must be escaped."""

    values = ("a", None, "x/y=z ä%", "b")

    def make_sink(self, tmp_path: Path) -> HDFS:
        return HDFS(self.folder(), partition_by=["kind"])

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        kinds = [self.values[n % 4] for n in range(start, start + count)]
        return super().rows(start, count).append_column("kind", pa.array(kinds, pa.string()))

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.drop_columns(["kind"]).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
class TestOrc(HdfsContract):
    extension = ".orc"

    def make_sink(self, tmp_path: Path) -> HDFS:
        return HDFS(self.folder(), format="orc")


@pytest.mark.slow
class TestJson(HdfsContract):
    extension = ".json"

    def make_sink(self, tmp_path: Path) -> HDFS:
        return HDFS(self.folder(), format="json")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        lines = [f'{{"id":{n},"name":"räw"}}' for n in range(start, start + count)]
        return pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.string())})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column(0).to_pylist()  # type: ignore[no-any-return]
