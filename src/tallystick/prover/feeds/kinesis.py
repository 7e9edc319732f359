"""Streams of Kinesis: one of the prover's own, with a shard for each lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from tallystick.errors import SourceError
from tallystick.prover.feeds.base import Feed, Rows
from tallystick.prover.place import Place
from tallystick.prover.readers.kinesis import client, make_stream
from tallystick.prover.workload import LANES
from tallystick.servers.kinesis import REGION
from tallystick.sources import Kinesis

AT_ONCE = 200
HASH_KEYS = 1 << 128
"""Shards share them out evenly."""


class KinesisFeed(Feed):
    kind = "kinesis"
    servers = ("kinesis",)

    @classmethod
    def redirect(cls, source: Kinesis, rows: Rows, place: Place) -> Kinesis:
        return replace(
            source,
            stream=place.input_name(rows.source),
            region=REGION,
            endpoint=place.server_for_job("kinesis"),
            starting="earliest",
            max_records_per_epoch=rows.workload.per_epoch,
        )

    @classmethod
    def fill(cls, source: Kinesis, rows: Rows, place: Place) -> None:
        address, stream = place.server("kinesis"), place.input_name(rows.source)
        make_stream(address, stream)
        server, messages = client(address), rows.messages()
        while entries := [_entry(*message) for message in islice(messages, AT_ONCE)]:
            answer = server.put_records(StreamName=stream, Records=entries)
            if answer["FailedRecordCount"]:
                raise SourceError(f"the stream {stream} did not take {answer['FailedRecordCount']} of the records")


def _entry(lane: int, key: bytes | None, value: bytes) -> Mapping[str, Any]:
    chosen = str(HASH_KEYS // LANES * lane)
    return {"Data": value, "PartitionKey": (key or b"none").decode(), "ExplicitHashKey": chosen}
