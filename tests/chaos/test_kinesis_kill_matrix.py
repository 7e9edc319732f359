"""Kinesis to PostgreSQL and to Kafka, real servers: killed at points of the protocol while the stream is resharded."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from fed_job import FEW, FedJob
from killed_job import note
from kills import KILLS

from kafka_topics import make_topic, read_topic
from kinesis_resharding import REGION, make_stream, merge, open_shards, put, split
from postgresql_tables import ask, prepared
from tallystick.servers.kinesis import Kinesis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


class FromKinesis(FedJob):
    pipeline = "kinesis_pipeline.py"
    per_run = 60

    def __init__(self, kinesis: str, sink: str, address: str, folder: Path) -> None:
        super().__init__(folder)
        self.kinesis, self.sink, self.address = kinesis, sink, address
        self.stream = make_stream(kinesis)
        self.target = make_topic(address) if sink == "kafka" else f"t{uuid.uuid4().hex[:10]}"

    def arguments(self) -> list[str]:
        plan = {"folder": str(self.folder), "stream": self.stream, "region": REGION, "endpoint": self.kinesis}
        return [json.dumps({**plan, "sink": self.sink, "address": self.address, "target": self.target})]

    def feed(self, numbers: range) -> None:
        put(self.kinesis, self.stream, numbers)

    def disturb(self, run: int) -> None:
        """A split, a merge of what came out of it, and so on."""
        found = open_shards(self.kinesis, self.stream)
        shards = sorted(found, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        if run % 2 == 0:
            split(self.kinesis, self.stream, shards[0])
        else:
            merge(self.kinesis, self.stream, shards[0], shards[1])

    def delivered(self) -> Iterable[int]:
        if self.sink == "kafka":
            return [int(record.value or b"-1") for record in read_topic(self.address, self.target)]
        return [number for (number,) in ask(self.address, f"SELECT id FROM {self.target}")]


def campaign(request: pytest.FixtureRequest, kinesis: Kinesis, folder: Path, sink: str, kills: Sequence[str]) -> None:
    job = FromKinesis(kinesis.address, sink, request.getfixturevalue(sink).address, folder)
    found = job.campaign(kills)
    note(len(kills), ["kinesis"], {sink: found})
    print(f"\nKinesis to {sink}, {len(kills)} kills, resharded {len(kills)} times: {found}")
    assert found.exact, found
    assert sink == "kafka" or not prepared(job.address, f"tallystick/{job.job_id()}")


def test_neither_lost_nor_repeated(request: pytest.FixtureRequest, kinesis: Kinesis, tmp_path: Path) -> None:
    campaign(request, kinesis, tmp_path / "job", "postgresql", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("where", KILLS)
@pytest.mark.parametrize("sink", ["postgresql", "kafka"])
def test_neither_lost_nor_repeated_at_any_point(
    request: pytest.FixtureRequest, kinesis: Kinesis, tmp_path: Path, sink: str, where: str
) -> None:
    campaign(request, kinesis, tmp_path / "job", sink, KILLS[where])
