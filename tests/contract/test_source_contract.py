"""The shipped contract, run for every source, on real servers; the X stream's speaks the protocol."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer

from kafka_topics import make_topic
from kinesis_resharding import REGION, make_stream, put
from rabbit_queues import make_queue, publish
from real_servers import Elsewhere
from tallystick.receiver import LogReader
from tallystick.servers import Kafka as KafkaServer
from tallystick.servers import RabbitMQ as RabbitServer
from tallystick.servers.kinesis import Kinesis as KinesisServer
from tallystick.servers.ports import LOOPBACK, free_ports
from tallystick.sources import Collection, Files, Kafka, Kinesis, RabbitMQ, ReceiverSettings, Socket, XStream
from tallystick.testing import SourceContract
from x_server import TOKEN, XServer

pytestmark = pytest.mark.spark

PATIENCE_S = 30


def wait_durable(log: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while LogReader(log).durable < count:
        assert time.monotonic() < deadline, f"{LogReader(log).durable} of {count} records are durable"
        time.sleep(0.01)


class TestCollection(SourceContract):
    def make_source(self, tmp_path: Path) -> Collection:
        return self.of(self.records)

    def of(self, count: int) -> Collection:
        return Collection([{"id": number} for number in range(count)], per_epoch=10)

    def feed(self, source: Collection, numbers: Sequence[int]) -> None:
        """They are part of the declaration."""

    def grown(self, source: Collection, numbers: Sequence[int]) -> Collection:
        return self.of(numbers[-1] + 1)

    def number(self, row: Any) -> int:
        return int(row.id)


class TestFiles(SourceContract):
    """Files renamed in, one after the other, as a job that writes them would."""

    keeps_order = False  # files of the same second may come in any order
    records = 5

    def make_source(self, tmp_path: Path) -> Files:
        (tmp_path / "in").mkdir()
        return Files(tmp_path / "in", "json", "id long", max_files_per_epoch=1)

    def feed(self, source: Files, numbers: Sequence[int]) -> None:
        for number in numbers:
            staged = Path(source.path) / f".{number}.tmp"
            staged.write_text(f'{{"id": {number}}}\n')
            staged.rename(Path(source.path) / f"{number}.json")

    def number(self, row: Any) -> int:
        return int(row.id)


class TestKafka(SourceContract):
    keeps_order = False  # two partitions
    same_numbers = False  # Spark takes up to four partitions as the brokers list them, and in a replay as its log does

    address: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, kafka: KafkaServer | Elsewhere) -> None:
        cls.address = kafka.address

    def make_source(self, tmp_path: Path) -> Kafka:
        topic = make_topic(self.address, partitions=2)
        return Kafka(self.address, topic, max_records_per_epoch=10)

    def feed(self, source: Kafka, numbers: Sequence[int]) -> None:
        producer = Producer({"bootstrap.servers": self.address})
        for number in numbers:
            producer.produce(source.topics[0], str(number).encode())
        assert producer.flush(PATIENCE_S) == 0

    def number(self, row: Any) -> int:
        return int(row.value)


class TestKinesis(SourceContract):
    keeps_order = False  # two shards

    address: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, kinesis: KinesisServer) -> None:
        cls.address = kinesis.address

    def make_source(self, tmp_path: Path) -> Kinesis:
        stream = make_stream(self.address, shards=2)
        return Kinesis(stream, region=REGION, endpoint=self.address, max_records_per_epoch=10)

    def feed(self, source: Kinesis, numbers: Sequence[int]) -> None:
        put(self.address, source.stream, numbers)

    def number(self, row: Any) -> int:
        return int(row.value)


class TestRabbitMQ(SourceContract):
    address: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, rabbitmq: RabbitServer) -> None:
        cls.address = rabbitmq.address

    def make_source(self, tmp_path: Path) -> RabbitMQ:
        queue = make_queue(self.address)
        return RabbitMQ(tmp_path / "log", self.address, queue, max_records_per_epoch=10, partitions=2)

    def feed(self, source: RabbitMQ, numbers: Sequence[int]) -> None:
        before = LogReader(source.folder).durable
        publish(self.address, source.queue, numbers)
        wait_durable(source.folder, before + len(numbers))

    def number(self, row: Any) -> int:
        return int(row.value)


class TestXStream(SourceContract):
    server: ClassVar[XServer]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls) -> Iterator[None]:
        with XServer([]) as server, pytest.MonkeyPatch.context() as environment:
            environment.setenv("X_BEARER_TOKEN", TOKEN)
            cls.server = server
            yield

    def make_source(self, tmp_path: Path) -> XStream:
        return XStream(tmp_path / "log", url=self.server.url, max_records_per_epoch=10)

    def feed(self, source: XStream, numbers: Sequence[int]) -> None:
        before = LogReader(source.folder).durable
        for number in numbers:
            self.server.live.put(number)
        wait_durable(source.folder, before + len(numbers))

    def number(self, row: Any) -> int:
        return int(row.id)


class TestSocket(SourceContract):
    """Lines over one connection; the receiver runs beside the driver."""

    def make_source(self, tmp_path: Path) -> Socket:
        [port] = free_ports(1)
        return Socket(
            tmp_path / "log",
            listen=f"{LOOPBACK}:{port}",
            partitions=2,
            max_records_per_epoch=10,
            receiver=ReceiverSettings(segment_bytes=500, max_bytes=1 << 20),
        )

    def feed(self, source: Socket, numbers: Sequence[int]) -> None:
        before = LogReader(source.folder).durable
        host, _, port = str(source.listen).rpartition(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"".join(f"{number}\n".encode() for number in numbers))
        wait_durable(source.folder, before + len(numbers))

    def number(self, row: Any) -> int:
        return int(row.value)
