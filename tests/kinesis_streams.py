"""Streams of Kinesis for tests: made, read, and never shared."""

from __future__ import annotations

import uuid
from typing import Any

import boto3

from tallystick.kinesis import Repeats, parse

SIGNED = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}


def client(address: str) -> Any:
    return boto3.client("kinesis", endpoint_url=address, **SIGNED)


def new_stream(address: str, shards: int = 2) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    connected = client(address)
    connected.create_stream(StreamName=name, ShardCount=shards)
    connected.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    return name


def read_shards(address: str, stream: str) -> list[list[Any]]:
    """Every record of every shard, in the order of the shard."""
    connected = client(address)
    shards = connected.list_shards(StreamName=stream)["Shards"]
    return [list(_read_shard(connected, stream, shard["ShardId"])) for shard in shards]


def _read_shard(connected: Any, stream: str, shard: str) -> Any:
    start = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = connected.get_shard_iterator(**start)["ShardIterator"]
    for _ in range(1000):
        answer = connected.get_records(ShardIterator=iterator, Limit=5000)
        if not answer["Records"] and answer.get("MillisBehindLatest", 0) == 0:
            return
        yield from answer["Records"]
        iterator = answer["NextShardIterator"]
    raise AssertionError(f"{stream} has no end")


def without_repeats(shards: list[list[Any]]) -> list[Any]:
    """What a source of this package would hand on."""
    kept = []
    for shard in shards:
        repeats = Repeats()
        kept += [record for record in shard if not repeats.drop(parse(record["PartitionKey"])[1], record["Data"])]
    return kept
