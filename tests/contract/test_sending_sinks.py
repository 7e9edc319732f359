"""The sinks that only send, Kinesis and sockets: the shipped contract, what they carry, and what they refuse."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from test_sinks import StagedContract

from kinesis_streams import client, new_stream, read_shards, without_repeats
from line_receiver import LineReceiver
from real_servers import Elsewhere
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.kinesis import Mark, parse
from tallystick.records import Json, Outcome
from tallystick.servers import Kinesis as Server
from tallystick.servers import TcpProxy
from tallystick.servers.certificates import Certificates
from tallystick.sinks import Kinesis, Socket, Tls
from tallystick.sinks.base import JobContext
from tallystick.sinks.kinesis import RECORDS_MAX
from tallystick.sinks.staged import lower
from tallystick.testing.sinks import JOB, context


def records(*pairs: tuple[str | None, bytes | None]) -> pa.RecordBatch:
    keys, values = ([pair[n] for pair in pairs] for n in (0, 1))
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.binary())})


def lines(*texts: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(texts, pa.string())})


# -- Kinesis -----------------------------------------------------------------------------------------------------------

SIGNED = {"region": "us-east-1", "access_key": "any", "secret_key": "s3cret"}


class TestKinesis(StagedContract):
    @pytest.fixture(autouse=True)
    def _server(self, kinesis: Server | Elsewhere) -> Iterator[None]:
        self.address = kinesis.address
        with TcpProxy(int(self.address.rpartition(":")[2])) as self.proxy:
            yield

    def make_sink(self, tmp_path: Path) -> Kinesis:
        made = new_stream(self.address)
        return Kinesis(made, endpoint=f"http://{self.proxy.address}", request_timeout="2s", **SIGNED)

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        return records(*((f"k{n % 3}" if n % 2 else None, f"row {n}".encode()) for n in range(start, start + count)))

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column("value").to_pylist()  # type: ignore[no-any-return]

    def read_rows(self, sink: Kinesis) -> Sequence[Json]:
        """As the Kinesis source reads: what was sent twice is dropped."""
        return [record["Data"] for record in without_repeats(read_shards(self.address, sink.stream))]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Any) -> contextlib.AbstractContextManager[None]:
        return self.cut()


@pytest.fixture
def stream(kinesis: Server | Elsewhere) -> Kinesis:
    made = Kinesis(new_stream(kinesis.address), endpoint=kinesis.address, **SIGNED)
    made.check(JobContext())
    return made


def test_records_carry_their_mark_and_go_where_their_key_goes(stream: Kinesis, kinesis: Server | Elsewhere) -> None:
    count = 2 * RECORDS_MAX + 7
    stream.apply(context(4, 2, slice_=3), [records(*((f"k{n % 5}", b"%d" % n) for n in range(count)))])
    plain = {
        f"k{n}": client(kinesis.address).put_record(StreamName=stream.stream, Data=b"x", PartitionKey=f"k{n}")
        for n in range(5)
    }
    shards = read_shards(kinesis.address, stream.stream)
    named = [parse(record["PartitionKey"]) for shard in shards for record in shard]
    marks = [mark for _, mark in named if mark is not None]
    assert sorted(marks) == [Mark(JOB, 4, 2, 3, n) for n in range(count)]
    for number, shard in enumerate(shards):
        for key in {parse(record["PartitionKey"])[0] for record in shard}:
            assert int(plain[key]["ShardId"].rpartition("-")[2]) == number, "another writer's records go there too"


def test_what_is_applied_twice_is_there_twice_and_read_once(stream: Kinesis, kinesis: Server | Elsewhere) -> None:
    for _ in range(2):
        stream.apply(context(), [records((None, b"a"), ("k", b"b"))])
    shards = read_shards(kinesis.address, stream.stream)
    assert sum(map(len, shards)) == 4, "a sink that shows no repeats would not need the mark"
    assert sorted(record["Data"] for record in without_repeats(shards)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("k", None), "with the key 'k': its value is null"),
        (("k" * 181, b""), "over 180 letters"),
        (("k", bytes(1 << 20)), "its value has over"),
    ],
)
def test_records_that_kinesis_would_refuse_are_told_before_the_decision(
    stream: Kinesis, row: tuple[str, bytes | None], why: str
) -> None:
    with pytest.raises(RowRefusedError, match=why):
        stream.screen(context(), records(("good", b"x"), row))
    stream.screen(context(), records(("good", b"x"), (None, b"y")))


def test_streams_and_servers_that_are_not_there_are_told(kinesis: Server | Elsewhere) -> None:
    with pytest.raises(
        SinkError, match=r"ResourceNotFound.*aws kinesis create-stream --stream-name nowhere"
    ) as refused:
        Kinesis("nowhere", endpoint=kinesis.address, **SIGNED).check(JobContext())
    assert "s3cret" not in str(refused.value)
    with pytest.raises(SinkError, match=r"http://127.0.0.1:1 cannot be reached"):
        Kinesis("t", endpoint="http://127.0.0.1:1", request_timeout="1s", **SIGNED).check(JobContext())
    assert "s3cret" not in repr(Kinesis("t", **SIGNED)) + Kinesis("t", **SIGNED).target


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"stream": ""}, "name of a stream"),
        ({"access_key": "a"}, "go together"),
        ({"endpoint": "http://a:b@c"}, "apart"),
    ],
)
def test_a_stream_that_cannot_work_is_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Kinesis(**{"stream": "t", **settings})


TEXT, NUMBER = t.StringType(), t.LongType()


@pytest.mark.parametrize(
    "columns", [{"id": NUMBER}, {"value": NUMBER}, {"value": TEXT, "key": NUMBER}, {"value": TEXT, "other": TEXT}]
)
def test_columns_that_do_not_fit_are_refused_at_once(columns: dict[str, t.DataType]) -> None:
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ConfigError, match=r"kinesis: (needed a column value|takes the columns value)"):
        Kinesis("t").columns(schema, None)  # type: ignore[arg-type]


# -- sockets -----------------------------------------------------------------------------------------------------------


class TestSocket(StagedContract):
    @pytest.fixture(autouse=True)
    def _receiver(self) -> Iterator[None]:
        self.receiver = LineReceiver()
        with self.receiver.listening(), TcpProxy(self.receiver.port) as self.proxy:
            yield

    def make_sink(self, tmp_path: Path) -> Socket:
        host, port = self.proxy.address.split(":")
        return Socket(host, int(port), "text", timeout="2s")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        return lines(*(f"row {n}" for n in range(start, start + count)))

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return batch.column(0).to_pylist()  # type: ignore[no-any-return]

    def read_rows(self, sink: Socket) -> Sequence[Json]:
        return self.receiver.rows

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Any) -> contextlib.AbstractContextManager[None]:
        return self.cut()


def test_a_slice_is_framed_and_sent_again_until_it_is_answered(tmp_path: Path) -> None:
    receiver = LineReceiver()
    receiver.unanswered = 1
    with receiver.listening():
        staged = lower(Socket("127.0.0.1", receiver.port, "text"), tmp_path / "staging")
        staged.check(JobContext())
        transaction = staged.begin_transaction(context(3, 2, slice_=1))
        for batch in (lines("a", "b"), lines("c")):
            staged.write(transaction, batch)
        committable = staged.pre_commit(transaction)
        assert staged.commit(committable) is Outcome.RETRY_LATER
        assert staged.commit(committable) is Outcome.COMMITTED
    assert receiver.slices == [(f"#tallystick end {JOB} 3 2 1 3", ["a", "b", "c"])] * 2
    assert staged.commit(committable) is Outcome.ALREADY_COMMITTED


def test_a_wrong_answer_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        import threading

        def answer_wrongly() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as received:
                for line in received:
                    if line.startswith(b"#tallystick end"):
                        connection.sendall(b"thanks\n")
                        return

        thread = threading.Thread(target=answer_wrongly)
        thread.start()
        with pytest.raises(ConnectionError, match=r"answered 'thanks', needed '#tallystick end .* 1'"):
            Socket("127.0.0.1", listener.getsockname()[1], "text").apply(context(), [lines("a")])
        thread.join()


@pytest.mark.parametrize(
    ("line", "why"), [(None, "null"), ("a\nb", "line break"), ("a\rb", "line break"), ("#tallystick end", "as a mark")]
)
def test_lines_that_cannot_be_framed_are_told_before_the_decision(line: str | None, why: str) -> None:
    with pytest.raises(RowRefusedError, match=why):
        Socket("a", 1, "text").screen(context(), lines("good", line))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"host": ""}, "host needs"),
        ({"host": "u@h"}, "host needs"),
        ({"port": 0}, "port needs"),
        ({"format": "xml"}, "json or text"),
        ({"timeout": 5}, "not a duration"),
    ],
)
def test_a_socket_that_cannot_work_is_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Socket(**{"host": "a", "port": 1, **settings})


def test_a_receiver_that_does_not_listen_is_told() -> None:
    with pytest.raises(SinkError, match=r"socket:127.0.0.1:1 cannot be reached.*start the receiver"):
        Socket("127.0.0.1", 1).check(JobContext())


def test_lines_go_over_tls(tmp_path: Path) -> None:
    import ssl
    import threading

    certificates = Certificates(tmp_path / "certificates")
    certificates.make()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificates.server_file)
    heard: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with server_side.wrap_socket(connection, server_side=True) as secured, secured.makefile("rb") as received:
            for line in received:
                heard.append(line)
                if line.startswith(b"#tallystick end"):
                    secured.sendall(line)
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        tls = Tls(ca_file=str(certificates.ca_file))
        Socket("127.0.0.1", listener.getsockname()[1], "text", tls=tls).apply(context(), [lines("a")])
        thread.join()
    assert heard[1] == b"a\n"
