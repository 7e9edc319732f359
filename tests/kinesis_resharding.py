"""Streams of Kinesis for tests: made, filled, split and merged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

import boto3

REGION = "us-east-1"
WAIT_S = 30


def client(address: str) -> Any:
    return boto3.client("kinesis", region_name=REGION, endpoint_url=address)


def make_stream(address: str, shards: int = 2) -> str:
    name = f"s-{uuid.uuid4().hex[:12]}"
    client(address).create_stream(StreamName=name, ShardCount=shards)
    wait_active(address, name)
    return name


def wait_active(address: str, stream: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while _status(address, stream) != "ACTIVE":
        assert time.monotonic() < deadline, f"{stream} is not active"
        time.sleep(0.02)


def _status(address: str, stream: str) -> str:
    return str(client(address).describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"])


def put(address: str, stream: str, numbers: Iterable[int]) -> None:
    """One record per number, its key is the number, too."""
    entries = [{"Data": str(number).encode(), "PartitionKey": str(number)} for number in numbers]
    answer = client(address).put_records(StreamName=stream, Records=entries)
    assert answer["FailedRecordCount"] == 0


def open_shards(address: str, stream: str) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = client(address).list_shards(StreamName=stream)["Shards"]
    return [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]


def split(address: str, stream: str, shard: dict[str, Any]) -> None:
    low, high = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
    client(address).split_shard(
        StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
    )
    wait_active(address, stream)


def merge(address: str, stream: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    client(address).merge_shards(
        StreamName=stream, ShardToMerge=first["ShardId"], AdjacentShardToMerge=second["ShardId"]
    )
    wait_active(address, stream)
