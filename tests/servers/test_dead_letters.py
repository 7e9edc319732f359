"""Refused rows on real servers: which ones each sink gives back, that the others are there, and how letters arrive."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cassandra_tables
from kafka_topics import make_topic, read_topic, wait_for_markers
from postgresql_tables import ask, new_table
from real_servers import Elsewhere
from redis_keys import client, found, new_prefix
from search_indices import documents, new_index
from tallystick.errors import ConfigError
from tallystick.records import Outcome
from tallystick.servers import Cassandra as CassandraNode
from tallystick.servers import Kafka as Broker
from tallystick.servers import OpenSearch as SearchNode
from tallystick.servers import PostgreSQL as PostgreSQLServer
from tallystick.servers import Redis as RedisServer
from tallystick.sinks import Cassandra, JobContext, Kafka, OpenSearch, PostgreSQL, Redis
from tallystick.sinks.base import Sink, TransactionalSink
from tallystick.sinks.cassandra import client as cassandra_client
from tallystick.sinks.letters import SCHEMA, letters, spark_schema
from tallystick.sinks.staged import lower
from tallystick.testing.sinks import JOB, context


def sorted_out(sink: TransactionalSink[Any], *batches: pa.RecordBatch, dead_letters: bool = True) -> dict[int, str]:
    """Prepare and commit; gives the places of refused rows, counted over all batches, and the reasons."""
    transaction = sink.begin_transaction(replace(context(), dead_letters=dead_letters, stamp_us=1_800_000_000_000_000))
    refused: dict[int, str] = {}
    before = 0
    for rows in batches:
        refused |= {before + one.place: one.why for one in sink.write(transaction, rows) or ()}
        before += rows.num_rows
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    return refused


def batch(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: list(values) for name, values in columns.items()})


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def table(server: PostgreSQLServer, columns: str, **settings: Any) -> PostgreSQL:
    name = new_table()
    ask(server.address, f"CREATE TABLE {name} ({columns})")
    sink = PostgreSQL(server.address, name, **settings)
    sink.check(JobContext())
    return sink


@pytest.mark.parametrize("via", ["prepared", "staged"])
def test_postgresql_gives_back_what_a_type_or_a_constraint_refuses(postgresql: PostgreSQLServer, via: str) -> None:
    """Several in one batch, at its start, its end and side by side; a text with a line break before them."""
    sink = table(postgresql, "id bigint NOT NULL CHECK (id <> 5), n smallint, t varchar(4)", via=via)
    numbers: list[Any] = [99999, 1, 1, 1, 1, 1, 1, 99999]
    texts = ["ok", "a\nb", None, "too long", "", "ok", "nul\0", "ok"]
    ids: list[Any] = [0, 1, 2, 3, None, 5, 6, 7]
    refused = sorted_out(sink, batch(id=ids, n=numbers, t=texts), batch(id=[8, 9], n=[1, 99999], t=["x", "y"]))
    assert sorted(refused) == [0, 3, 4, 5, 6, 7, 9], refused
    for place, words in {0: "out of range", 3: "too long", 4: "not-null", 5: "check constraint", 6: "0x00"}.items():
        assert words in refused[place]
    assert ask(postgresql.address, f"SELECT id FROM {sink.table} ORDER BY id") == [(1,), (2,), (8,)]


def test_postgresql_gives_back_keys_that_are_taken(postgresql: PostgreSQLServer) -> None:
    """In the table, in an earlier batch of the slice, and in the same batch."""
    sink = table(postgresql, "id bigint PRIMARY KEY, t text UNIQUE")
    ask(postgresql.address, f"INSERT INTO {sink.table} VALUES (3, 'three')")
    first, second = batch(id=[1, 2, 3, 2], t=["a", "b", "c", "d"]), batch(id=[4, 1, 5], t=["a", "e", "f"])
    refused = sorted_out(sink, first, second)
    assert refused == {
        2: "Key (id)=(3) already exists",
        3: "Key (id)=(2) already exists",
        4: "Key (t)=(a) already exists",
        5: "Key (id)=(1) already exists",
    }
    assert ask(postgresql.address, f"SELECT id FROM {sink.table} ORDER BY id") == [(1,), (2,), (3,), (5,)]


@pytest.mark.parametrize("mode", ["append", "upsert", "changes"])
def test_postgresql_gives_back_what_only_the_target_itself_refuses(postgresql: PostgreSQLServer, mode: str) -> None:
    """A foreign key, which the server looks at when the rows are there, and names no line."""
    parents = new_table()
    ask(postgresql.address, f"CREATE TABLE {parents} (id bigint PRIMARY KEY)")
    ask(postgresql.address, f"INSERT INTO {parents} VALUES (1), (2)")
    declared: dict[str, Any] = {"mode": mode}
    if mode != "append":
        declared["key"] = ["id"]
    columns = "id bigint PRIMARY KEY" if mode != "append" else "id bigint"
    sink = table(
        postgresql,
        f"{columns}, parent bigint REFERENCES {parents} DEFERRABLE INITIALLY DEFERRED",
        **declared,
        **({"delete_flag": "gone"} if mode == "changes" else {}),
    )
    rows: dict[str, list[Any]] = {"id": [1, 2, 3, 4, 5], "parent": [1, 7, 2, 8, None]}
    if mode == "changes":
        rows["gone"] = [False, False, False, False, True]
    refused = sorted_out(sink, batch(**rows))
    assert sorted(refused) == [1, 3]
    assert "Key (parent)=(7) is not present" in refused[1]
    left = [(1,), (3,)] if mode == "changes" else [(1,), (3,), (5,)]
    assert ask(postgresql.address, f"SELECT id FROM {sink.table} ORDER BY id") == left


def test_postgresql_many_bad_rows_in_a_large_batch(postgresql: PostgreSQLServer) -> None:
    sink = table(postgresql, "id bigint CHECK (id % 50 <> 7)")
    refused = sorted_out(sink, batch(id=range(10_000)))
    assert sorted(refused) == [n for n in range(10_000) if n % 50 == 7]
    assert ask(postgresql.address, f"SELECT count(*) FROM {sink.table}") == [(9_800,)]


@pytest.mark.parametrize("via", ["prepared", "staged"])
def test_postgresql_gives_back_what_is_too_large_for_an_index(postgresql: PostgreSQLServer, via: str) -> None:
    sink = table(postgresql, "id bigint, t text", via=via)
    ask(postgresql.address, f"CREATE INDEX ON {sink.table} (t)")
    refused = sorted_out(sink, batch(id=[1, 2, 3], t=["a", os.urandom(5000).hex(), "b"]))
    assert list(refused) == [1]
    assert refused[1].startswith("index row")
    assert ask(postgresql.address, f"SELECT id FROM {sink.table} ORDER BY id") == [(1,), (3,)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["bigint", "text"])
def test_postgresql_compares_keys_of_a_large_slice_in_time_that_does_not_grow_with_its_square(
    postgresql: PostgreSQLServer, kind: str
) -> None:
    """Whole numbers are watched, all others are looked for; compared one with each other they took minutes."""
    sink = table(postgresql, f"id {kind} PRIMARY KEY")
    ask(postgresql.address, f"INSERT INTO {sink.table} VALUES (12345)")
    numbers = [list(range(first, first + 10_000)) for first in range(0, 50_000, 10_000)]
    numbers[3][7] = 4711
    batches = [batch(id=some if kind == "bigint" else [str(one) for one in some]) for some in numbers]
    refused = sorted_out(sink, *batches)
    assert refused == {12345: "Key (id)=(12345) already exists", 30007: "Key (id)=(4711) already exists"}
    assert ask(postgresql.address, f"SELECT count(*) FROM {sink.table}") == [(49_999,)]


# -- Kafka, Redis, and what is applied ---------------------------------------------------------------------------------


def records(*pairs: tuple[bytes | None, bytes | None], **more: pa.Array) -> pa.RecordBatch:
    keys, values = ([pair[n] for pair in pairs] for n in (0, 1))
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), **more}
    )


def read(broker: Broker | Elsewhere, sink: Kafka) -> list[bytes]:
    assert sink.topic is not None
    wait_for_markers(broker.address, sink.prefix(JOB), sink.driver.transactions)
    return sorted(record.value or b"" for record in read_topic(broker.address, sink.topic))


@pytest.mark.parametrize("send", ["arrow", "objects"])
def test_kafka_gives_back_records_that_are_too_large_or_for_nowhere(kafka: Broker | Elsewhere, send: str) -> None:
    """The topic takes 3,000 bytes. A record that just fits is taken by the broker: the sizes are the real ones."""
    topic = make_topic(kafka.address, max_message_bytes="3000")
    sink = Kafka(kafka.address, topic, send=send)
    sink.check(JobContext())
    fits = 3000 - 61 - 2 - 3 - 1 - 2 - 1  # head of the batch; lengths of record, key and value, and three small ones
    sizes = [10, 3000, fits, fits + 1, 20]
    pairs = [(b"", b"x" * size) for size in sizes]
    places = pa.array([None, None, 1, 0, 7], pa.int32())
    refused = sorted_out(sink, records(*pairs, partition=places), records(*[(b"k", b"small" * 50)] * 40))
    assert sorted(refused) == [1, 3, 4]
    assert "the topic takes 3000" in refused[3]
    assert "the topic has 2" in refused[4]
    assert sorted(len(value or b"") for value in read(kafka, sink)) == sorted([10, fits, *[250] * 40])


def test_kafka_gives_back_records_that_the_producer_does_not_take(kafka: Broker | Elsewhere) -> None:
    sink = Kafka(kafka.address, None, {"max.request.size": 2000, "compression.type": "lz4"})
    sink.check(JobContext())  # else the broker makes the topic for tokens by itself, with other settings
    topic = make_topic(kafka.address)
    topics = pa.array([topic, topic, None, "tallystick.tokens"])
    large = records((None, b"x" * 10), (None, b"x" * 2001), (None, b"y"), (None, b"z"), topic=topics)
    assert {place: why.split(",")[0] for place, why in sorted_out(sink, large).items()} == {
        1: "the record has 2001 bytes",
        2: "the row has no topic (null)",
        3: "tallystick.tokens is for commit tokens alone",
    }


def texts(**columns: Sequence[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


@pytest.mark.parametrize(
    ("command", "rows", "why"),
    [
        (
            "incrby",
            {"key": ["a", "text", None, "list"], "value": ["1"] * 4},
            {1: "not an integer", 2: "no key", 3: "list"},
        ),
        ("hset", {"key": ["a", "b", "list"], "f": ["1", None, "1"]}, {1: "no field", 2: "holds a list"}),
        ("zadd", {"key": ["a", "b"], "score": ["1", "NaN"], "member": ["m", "m"]}, {1: "not a number"}),
        ("set", {"key": ["a", "list"], "value": ["1", None]}, {1: "no value"}),
        ("xadd", {"key": ["text", "a"], "f": ["1", "1"]}, {0: "holds a string"}),
    ],
)
def test_redis_gives_back_what_no_command_can_be_done_with(
    redis: RedisServer, command: str, rows: dict[str, list[str | None]], why: dict[int, str]
) -> None:
    sink = Redis(redis.address, command, key_prefix=new_prefix())
    client(redis.address).set(f"{sink.key_prefix}text", "words")
    client(redis.address).rpush(f"{sink.key_prefix}list", "entry")
    refused = sorted_out(sink, texts(**rows))
    assert sorted(refused) == sorted(why)
    for place, words in why.items():
        assert words in refused[place]
    assert client(redis.address).exists(f"{sink.key_prefix}a") == 1
    assert client(redis.address).lrange(f"{sink.key_prefix}list", 0, -1) == [b"entry"]


def test_cassandra_gives_back_what_the_table_cannot_hold(cassandra: CassandraNode | Elsewhere, tmp_path: Path) -> None:
    name = cassandra_tables.new_table(cassandra.address, "id bigint PRIMARY KEY, name ascii")
    sink = Cassandra(cassandra.address, name)
    sink.check(JobContext())
    rows = batch(id=[1, None, 3, 4], name=["a", "b", "ä", "d"])
    assert sorted_out(lower(sink, tmp_path), rows) == {
        1: "the key column id is null",
        2: "name is ascii and the text is not",
    }
    assert sorted(cassandra_tables.ask(cassandra.address, f"SELECT id, name FROM {name}")) == [(1, "a"), (4, "d")]
    cassandra_client.close()


def test_opensearch_gives_back_rows_without_an_id(opensearch: SearchNode | Elsewhere, tmp_path: Path) -> None:
    sink = OpenSearch(opensearch.address, new_index(opensearch.address, {}), "id")
    sink.check(JobContext())
    ids, bad = [None, "", "x" * 513, "good", "nan"], [False] * 4 + [True]
    refused = sorted_out(lower(sink, tmp_path), batch(id=ids, document=["{}"] * 5, not_finite=bad))
    assert sorted(refused) == [0, 1, 2, 4]
    assert [id_ for id_, _ in documents(opensearch.address, sink.index)] == ["good"]


# -- letters in every sink ---------------------------------------------------------------------------------------------

LETTERS = letters(context(), batch(id=[1, 2], raw=[b"text", b"\xff"]), ["too large", "wrong type"], 0)
SAID = ["too large", "wrong type"]


def delivered(sink: Sink, tmp_path: Path) -> None:
    """As a job does it: checked with the columns of letters, then written."""
    sink.letters(LETTERS.slice(0, 0))
    sink.check(JobContext(schema=spark_schema()))
    made = lower(sink, tmp_path / "staging")
    sorted_out(made, made.letters(LETTERS), dead_letters=False)


def test_letters_in_postgresql(postgresql: PostgreSQLServer, tmp_path: Path) -> None:
    name = new_table()
    delivered(PostgreSQL(postgresql.address, name), tmp_path)
    rows = ask(postgresql.address, f"SELECT reason, row, epoch, slice FROM {name} ORDER BY id")
    assert rows == [
        ("too large", '{"id": 1, "raw": "text"}', 0, 0),
        ("wrong type", '{"id": 2, "raw": {"base64": "/w=="}}', 0, 0),
    ]


def test_letters_in_kafka(kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    sink = Kafka(kafka.address, make_topic(kafka.address))
    delivered(sink, tmp_path)
    told = [json.loads(value or b"") for value in read(kafka, sink)]
    assert sorted(letter["reason"] for letter in told) == SAID
    assert set(told[0]) == set(SCHEMA.names)


@pytest.mark.parametrize("command", ["xadd", "hset", "set"])
def test_letters_in_redis(redis: RedisServer, tmp_path: Path, command: str) -> None:
    sink = Redis(redis.address, command, key_prefix=new_prefix())
    delivered(sink, tmp_path)
    held = list(found(redis.address, f"{sink.key_prefix}*").values())
    told = held[0] if command == "xadd" else [json.loads(one) for one in held] if command == "set" else held
    assert sorted(str(one.get(b"reason", one.get("reason", b""))).strip("b'") for one in told) == SAID


def test_letters_in_cassandra(cassandra: CassandraNode | Elsewhere, tmp_path: Path) -> None:
    name = f"{cassandra_tables.KEYSPACE}.letters_{new_prefix()[2:14]}"
    cassandra_tables.new_table(cassandra.address, "id bigint PRIMARY KEY")  # the keyspace
    delivered(Cassandra(cassandra.address, name, key=["id"], create=True), tmp_path)
    assert sorted(why for (why,) in cassandra_tables.ask(cassandra.address, f"SELECT reason FROM {name}")) == SAID
    cassandra_client.close()


def test_letters_in_opensearch(opensearch: SearchNode | Elsewhere, tmp_path: Path) -> None:
    sink = OpenSearch(opensearch.address, new_index(opensearch.address), "id")
    delivered(sink, tmp_path)
    told = documents(opensearch.address, sink.index)
    assert [letter["reason"] for _, letter in told] == SAID
    assert [id_ for id_, _ in told] == [letter["id"] for _, letter in told] == LETTERS.column("id").to_pylist()


@pytest.mark.parametrize(
    "sink",
    [
        Redis("redis://localhost", "incrby"),
        Kafka("localhost:9092"),
        PostgreSQL("postgresql://localhost", "t", mode="upsert", key=["order"]),
        OpenSearch("localhost", "t", "order"),
        Cassandra("localhost", "k.t", key=["order"]),
    ],
    ids=lambda sink: sink.facts.name,
)
def test_a_sink_that_cannot_hold_letters_says_so_at_once(sink: Sink) -> None:
    with pytest.raises(ConfigError, match="cannot be the sink for dead letters"):
        sink.letters(LETTERS.slice(0, 0))
