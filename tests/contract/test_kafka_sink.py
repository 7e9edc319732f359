"""The shipped contract, run for the Kafka sink on a real broker, with both ways of sending."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.kafka.transactions import Answer, Ending
from tallystick.records import Attempt, Json
from tallystick.servers import Kafka as Broker
from tallystick.servers.tcp_proxy import TcpProxy
from tallystick.sinks import Kafka
from tallystick.sinks.base import TransactionState
from tallystick.testing import SinkContract
from tallystick.testing.doomed import write_and_die
from tallystick.testing.sinks import JOB, context


@pytest.fixture(scope="module")
def proxy(kafka: Broker | Elsewhere) -> Iterator[TcpProxy]:
    if isinstance(kafka, Elsewhere):
        pytest.skip("needs a broker with a listener behind a proxy: unset TALLYSTICK_TEST_KAFKA")
    with kafka.proxy() as opened:
        yield opened


class KafkaContract(SinkContract):
    send: ClassVar[str]
    on_its_way_s = 0.5
    address: str
    proxy: TcpProxy

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: Broker, proxy: TcpProxy) -> None:
        self.address, self.proxy = kafka.address, proxy

    def make_sink(self, tmp_path: Path) -> Kafka:
        return Kafka(self.proxy.address, make_topic(self.address), {"linger.ms": 1}, send=self.send)

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        """Every sort: with key and without, empty and null values."""
        numbers = range(start, start + count)
        keys = [None if n % 3 == 0 else f"k{n % 5}".encode() for n in numbers]
        values = [None if n % 7 == 3 else b"" if n % 7 == 5 else f"räw {n}".encode() for n in numbers]
        return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return list(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))

    def refused_rows(self) -> pa.RecordBatch:
        large = pa.array([b"x" * 1_000_001], pa.binary())
        return pa.RecordBatch.from_pydict({"key": pa.array([b"k"], pa.binary()), "value": large})

    def read_rows(self, sink: Kafka) -> Sequence[Json]:
        assert sink.topic is not None
        wait_for_markers(self.address, sink.prefix(JOB), sink.driver.transactions)
        wait_for_markers(self.address, sink.prefix("another-job"), sink.driver.transactions)
        return [(record.key, record.value) for record in read_topic(self.address, sink.topic)]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Kafka) -> contextlib.AbstractContextManager[None]:
        return self.cut()


class TestFromArrow(KafkaContract):
    send = "arrow"
    ends_with_its_client = True
    """Few rows are sent when they are all there: until then nobody has heard of the transaction."""

    def test_a_process_that_dies_in_the_middle_of_many_rows_leaves_an_open_transaction(
        self, sink: Kafka, scratch: Path
    ) -> None:
        many = [pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 1000] * 1000, pa.binary())})] * 3
        write_and_die(sink, context(), many, scratch, 1.0)
        self.assert_published(sink)
        [found] = self.open(sink)
        assert (found.attempt, found.state) == (Attempt(0, 1), TransactionState.BEGUN)
        sink.abort(found.committable)
        assert self.open(sink) == []
        self.assert_published(sink)

    def expire(self, sink: Kafka, committable: Json) -> bool:
        """As by a time-out: the coordinator aborts it."""
        producer_id, producer_epoch = committable["producer"]
        ending = Ending(committable["name"], producer_id, producer_epoch, commit=False)
        assert sink.driver.transactions.end_soon([ending]) == [Answer.DONE]
        return True


class TestFromObjects(KafkaContract):
    send = "objects"

    def expire(self, sink: Kafka, committable: Json) -> bool:
        """The name is started anew: Kafka no longer says what became of the transaction, only its token does."""
        deadline = time.monotonic() + 30
        while (error := sink.driver.transactions.initialise(committable["name"], 60_000)) != "":
            assert error == "ConcurrentTransactionsError"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return True
