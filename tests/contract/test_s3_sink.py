"""The shipped contract, run for the S3 sink: on versitygw where it is found, else on moto."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from s3_objects import new_path, objects_below, rows_below, uploads_below
from tallystick.records import Json
from tallystick.servers import S3Server
from tallystick.servers.tcp_proxy import TcpProxy
from tallystick.sinks import S3
from tallystick.sinks.s3.upload import abort
from tallystick.testing import SinkContract


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[TcpProxy]:
    made = TcpProxy(s3.ports[0]).open()
    yield made
    made.close()


class S3Contract(SinkContract):
    """Readers are as naive as can be: every object below the path, notes too, that has the format's extension."""

    extension = ".parquet"
    server: S3Server
    proxy: TcpProxy

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server, proxy: TcpProxy) -> None:
        self.server, self.proxy = s3, proxy

    def make_sink(self, tmp_path: Path) -> S3:
        return S3(new_path(), format=self.extension[1:], endpoint=f"http://{self.proxy.address}")

    def read_rows(self, sink: S3) -> Sequence[Json]:
        return rows_below(self.server, sink.target, self.extension)

    def expire(self, sink: S3, committable: Json) -> bool:
        """As a lifecycle rule does."""
        for key, upload, *_ in committable["objects"]:
            abort(sink.notes.bucket, sink.notes.prefix + key, upload)
        return True

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.open()

    def break_connection(self, sink: S3) -> contextlib.AbstractContextManager[None]:
        return self.cut()

    def leftovers(self, sink: S3) -> Sequence[str]:
        notes = [key for key, _ in objects_below(self.server, f"{sink.target}.tallystick")]
        return notes + uploads_below(self.server, sink.target)


class TestParquet(S3Contract):
    pass


@pytest.mark.slow
class TestJson(S3Contract):
    extension = ".json"

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        lines = [f'{{"id":{n},"name":"räw"}}' for n in range(start, start + count)]
        return pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.string())})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column(0).to_pylist()  # type: ignore[no-any-return]
