"""Streams of Kinesis: with all repeats, as anybody reads them; and without, as the Kinesis source of this package does.

What the sink promises by itself is at-least-once; between two jobs of this package it is exactly-once. Both are looked
at, and judged apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallystick.errors import SinkError, SourceError
from tallystick.kinesis.marks import Repeats
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.prover.workload import LANES
from tallystick.records import Mode
from tallystick.servers.kinesis import REGION
from tallystick.sinks.extras import needed
from tallystick.sinks.kinesis import Kinesis
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_repeats import kept
from tallystick.sources.kinesis_shards import BEGINNING

ACTIVE_S = 30.0


class KinesisReader(Reader):
    kind = "kinesis"
    servers = ("kinesis",)
    proves = "as any reader of the stream sees it, which is at-least-once: a crash may repeat records"

    def __init__(self, sink: Kinesis, place: Place) -> None:
        super().__init__(sink, place)
        self._client = KinesisClient(sink.stream, REGION, place.server("kinesis"))
        self._at: dict[str, str] = {}
        self._seen: dict[str, tuple[Item, ...]] = {}

    @classmethod
    def redirect(cls, sink: Kinesis, name: str, place: Place) -> Kinesis:
        return replace(
            sink,
            stream=place.table_name(name),
            region=REGION,
            endpoint=place.server_for_job("kinesis"),
            access_key="any",
            secret_key="any",
            ca_file=None,
        )

    @classmethod
    def prepare(cls, sink: Kinesis, place: Place) -> None:
        make_stream(place.server("kinesis"), sink.stream)

    @classmethod
    def conclude(cls, sink: Kinesis, place: Place) -> None:
        """An account has few shards."""
        client(place.server("kinesis")).delete_stream(StreamName=sink.stream)

    def read(self) -> Mapping[str, Sequence[Item]]:
        """What came since the last time, shard by shard."""
        try:
            for shard in self._client.shards():
                self._follow(shard.name)
        except SourceError as failure:
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        return dict(self._seen)

    def _follow(self, shard: str) -> None:
        for page, behind_ms in self._client.read(shard, self._at.get(shard, BEGINNING), 10_000):
            if page:
                self._at[shard] = page[-1]["SequenceNumber"]
                items = tuple(Item(row_text({"value": _text(each["Data"])})) for each in self.seen(shard, page))
                self._seen[shard] = self._seen.get(shard, ()) + items
            if not page and not behind_ms:
                return

    def seen(self, shard: str, records: Sequence[Any]) -> Sequence[Any]:
        """Those that count."""
        return records


class KinesisSourceReader(KinesisReader):
    """With the eyes of the Kinesis source."""

    promise = Mode.EXACTLY_ONCE
    proves = "as the Kinesis source of another job sees it, which drops repeats by their marks: exactly-once"

    def __init__(self, sink: Kinesis, place: Place) -> None:
        super().__init__(sink, place)
        self._repeats: dict[str, Repeats] = {}

    def seen(self, shard: str, records: Sequence[Any]) -> Sequence[Any]:
        return kept(records, self._repeats.setdefault(shard, Repeats()))


KinesisReader.beside = {"read by the kinesis source": KinesisSourceReader}


def client(address: str) -> Any:
    return needed("boto3", "boto3", "kinesis").client(
        "kinesis", region_name=REGION, endpoint_url=address, aws_access_key_id="any", aws_secret_access_key="any"
    )


def make_stream(address: str, name: str) -> None:
    """With a shard for each lane of the workload. Returns when it takes records."""
    server = client(address)
    server.create_stream(StreamName=name, ShardCount=LANES)
    deadline = time.monotonic() + ACTIVE_S
    while server.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
        if time.monotonic() > deadline:
            raise SinkError(f"the stream {name} is not active after {ACTIVE_S:g} s")
        time.sleep(0.05)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
