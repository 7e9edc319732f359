"""The shipped contract, run for the Redis sink on a real server, for each command: most are not idempotent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from redis_keys import client, found, new_prefix, not_applied
from tallystick.records import Json
from tallystick.servers import Redis as Server
from tallystick.servers.tcp_proxy import TcpProxy
from tallystick.sinks import Redis
from tallystick.testing import SinkContract
from tallystick.testing.sinks import JOB


@pytest.fixture(scope="module")
def proxy(redis: Server) -> Iterator[TcpProxy]:
    with redis.proxy() as opened:
        yield opened


class RedisContract(SinkContract):
    command: ClassVar[str]
    server: Server
    proxy: TcpProxy

    @pytest.fixture(autouse=True)
    def _server(self, redis: Server, proxy: TcpProxy) -> None:
        self.server, self.proxy = redis, proxy

    def make_sink(self, tmp_path: Path) -> Redis:
        return Redis(self.server.address_of(self.proxy.port), self.command, key_prefix=new_prefix())

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = range(start, start + count)
        columns = {name: [self.cell(name, n) for n in numbers] for name in self.names}
        return pa.RecordBatch.from_pydict({name: pa.array(texts, pa.string()) for name, texts in columns.items()})

    names: ClassVar[tuple[str, ...]] = ("key", "value")

    def cell(self, name: str, number: int) -> str | None:
        """Texts of every sort, and for a field now and then none."""
        texts = ["", "räw", "two\r\nlines", "*3", f"row {number}"]
        return f"k{number}" if name == "key" else texts[number % len(texts)]

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return [(row.pop("key"), self.as_value(row)) for row in batch.to_pylist()]

    def as_value(self, row: dict[str, Any]) -> Any:
        return row["value"].encode()

    def read_rows(self, sink: Redis) -> Sequence[Json]:
        return [(key.removeprefix(sink.key_prefix), value) for key, value in self.read_keys(sink).items()]

    def read_keys(self, sink: Redis) -> dict[str, Any]:
        return found(self.server.address, f"{sink.key_prefix}*")

    def refused_rows(self) -> pa.RecordBatch:
        rows = self.rows(90, 2)
        return rows.set_column(0, "key", pa.nulls(2, pa.string()))

    def expire(self, sink: Redis, committable: Json) -> bool:
        """As if it had been evicted."""
        assert client(self.server.address).delete(f"{committable['base']}:{committable['name']}") == 1
        return True

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Redis) -> contextlib.AbstractContextManager[None]:
        return self.cut()

    def leftovers(self, sink: Redis) -> Sequence[str]:
        """What was applied in the epoch that was settled last is remembered until the next one."""
        return not_applied(self.server.address, sink.keys(JOB).base)


class TestSet(RedisContract):
    command = "set"


class TestIncrBy(RedisContract):
    command = "incrby"

    def cell(self, name: str, number: int) -> str:
        return f"k{number}" if name == "key" else str(number - 3)


class TestHSet(RedisContract):
    command = "hset"
    names = ("key", "name", "née")

    def cell(self, name: str, number: int) -> str | None:
        return None if name == "née" and number % 3 == 1 else super().cell(name, number)

    def as_value(self, row: dict[str, Any]) -> Any:
        return {name.encode(): value.encode() for name, value in row.items() if value is not None}


class TestZAdd(RedisContract):
    command = "zadd"
    names = ("key", "score", "member")

    def cell(self, name: str, number: int) -> str:
        return {"key": f"k{number}", "score": str(number / 4), "member": f"räw {number}"}[name]

    def as_value(self, row: dict[str, Any]) -> Any:
        return [(row["member"].encode(), float(row["score"]))]


class TestXAdd(TestHSet):
    """All rows are in one stream."""

    command = "xadd"

    def cell(self, name: str, number: int) -> str | None:
        return "stream" if name == "key" else super().cell(name, number)

    def read_rows(self, sink: Redis) -> Sequence[Json]:
        return [("stream", fields) for entries in self.read_keys(sink).values() for fields in entries]
