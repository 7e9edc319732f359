"""Real Cassandra, OpenSearch and Kinesis: each serves, and survives a kill with its data and its address."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from real_servers import started
from tallystick.errors import SetupError
from tallystick.servers import Cassandra, Kinesis, OpenSearch, npm


def test_cassandra_keeps_its_data_when_it_is_killed(tmp_path: Path) -> None:
    from cassandra.cluster import Cluster

    def ask(statement: str) -> list[Any]:
        host, port = node.address.split(":")
        cluster = Cluster([host], port=int(port), protocol_version=5)
        try:
            return list(cluster.connect().execute(statement, timeout=60))
        finally:
            cluster.shutdown()

    with started(Cassandra(tmp_path)) as node:
        ask("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        ask("CREATE TABLE k.t (id bigint PRIMARY KEY, name text)")
        ask("INSERT INTO k.t (id, name) VALUES (1, 'kept')")
        address = node.address
        node.kill()
        assert not node.running
        node.start()
        assert node.address == address
        assert [tuple(row) for row in ask("SELECT id, name FROM k.t")] == [(1, "kept")]


def test_opensearch_keeps_its_data_when_it_is_killed(tmp_path: Path) -> None:
    def ask(method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(urlsplit(node.address).netloc, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    with started(OpenSearch(tmp_path)) as node:
        assert ask("GET", "/")["version"]["number"] == node.version
        ask("PUT", "/t/_doc/1", {"name": "kept"})
        address = node.address
        node.kill()
        assert not node.running
        node.start()
        assert node.address == address
        assert ask("GET", "/t/_doc/1")["_source"] == {"name": "kept"}


def test_kinesis_keeps_its_data_when_it_is_killed(tmp_path: Path) -> None:
    import boto3

    with started(Kinesis(tmp_path)) as server:
        client = boto3.client(
            "kinesis",
            endpoint_url=server.address,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        client.create_stream(StreamName="t", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="t", WaiterConfig={"Delay": 1})
        client.put_record(StreamName="t", Data=b"kept", PartitionKey="k")
        server.kill()
        assert not server.running
        server.start()
        shard = client.list_shards(StreamName="t")["Shards"][0]["ShardId"]
        start = client.get_shard_iterator(StreamName="t", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        found = client.get_records(ShardIterator=start["ShardIterator"])["Records"]
        assert [record["Data"] for record in found] == [b"kept"]


def test_a_machine_without_node_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SetupError, match=r"no node found on PATH.*apt install nodejs npm"):
        npm.find_node()
    assert npm.main() == 0
