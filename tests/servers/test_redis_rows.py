"""Rows, scripts and the guard on a real Redis: chunks, bad rows, zombies, and what is said before the first epoch."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from real_servers import started
from redis_keys import client, found, held, new_prefix
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.records import Attempt, Json, Outcome
from tallystick.servers import Redis as Server
from tallystick.servers.ports import free_ports
from tallystick.sinks import JobContext, Redis
from tallystick.sinks.redis import rows as rows_module
from tallystick.testing.sinks import JOB, OTHER_JOB, context

SECRET = "s3cret-Pa55word"


def prepare(sink: Redis, *batches: pa.RecordBatch, **where: Any) -> Json:
    transaction = sink.begin_transaction(context(**where))
    try:
        for batch in batches:
            sink.write(transaction, batch)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.rollback(transaction)
        raise


def batch(**columns: Sequence[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


@pytest.fixture
def sink(redis: Server) -> Redis:
    return Redis(redis.address, "incrby", key_prefix=new_prefix())


def test_a_large_slice_is_applied_in_bounded_chunks(
    redis: Server, sink: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number of rows, and by bytes; a row that is larger than a chunk is one of its own."""
    count = 5 * rows_module.CHUNK_ROWS + 1
    many = batch(key=[f"k{n % 10}" for n in range(count)], value=["1"] * count)
    committable = prepare(sink, many)
    assert committable["chunks"] == 6
    assert sink.commit(committable) is Outcome.COMMITTED
    assert sum(int(value) for value in found(redis.address, f"{sink.key_prefix}*").values()) == count
    monkeypatch.setattr(rows_module, "CHUNK_BYTES", 100)
    words = Redis(redis.address, "set", key_prefix=new_prefix())
    committable = prepare(words, batch(key=["a", "b", "c", "d"], value=["x" * 1000, "y", "z", "x" * 90]))
    assert committable["chunks"] == 3
    assert words.commit(committable) is Outcome.COMMITTED
    assert {len(value) for value in found(redis.address, f"{words.key_prefix}*").values()} == {1000, 1, 90}


def test_a_commit_that_was_cut_in_the_middle_goes_on_where_it_stopped(redis: Server, sink: Redis) -> None:
    """Chunk 0 is applied and its answer lost: the second try begins with chunk 1."""
    count = 3 * rows_module.CHUNK_ROWS
    committable = prepare(sink, batch(key=["k"] * count, value=["1"] * count))
    keys = sink.keys(JOB, committable["name"])
    assert sink._apply(keys, Attempt(0, 1), [0]) is None
    assert sink._apply(keys, Attempt(0, 1), [0]) is None, "again, without effect"
    assert int(client(redis.address).get(f"{sink.key_prefix}k")) == rows_module.CHUNK_ROWS
    assert sink.commit(committable) is Outcome.COMMITTED
    assert int(client(redis.address).get(f"{sink.key_prefix}k")) == count
    assert sink.commit(committable) is Outcome.ALREADY_COMMITTED


@pytest.mark.parametrize(
    ("command", "rows", "said"),
    [
        ("incrby", {"key": ["a", "text"], "value": ["1", "1"]}, "text': its value is not an integer"),
        ("incrby", {"key": ["a", "list"], "value": ["1", "1"]}, "list': it holds a list"),
        ("hset", {"key": ["a", "list"], "f": ["1", "1"]}, "list': it holds a list"),
        ("zadd", {"key": ["list"], "score": ["1"], "member": ["1"]}, "it holds a list"),
        ("xadd", {"key": ["text"], "f": ["1"]}, "it holds a string"),
        ("set", {"key": ["a", None], "value": ["1", "2"]}, "has no key"),
        ("set", {"key": ["a", "b"], "value": ["1", None]}, "the key 'b' has no value"),
        ("hset", {"key": ["a", "b"], "f": ["1", None], "g": [None, None]}, "b' has no field"),
    ],
)
def test_a_row_that_is_refused_is_named_before_the_decision(
    redis: Server, command: str, rows: dict[str, list[str | None]], said: str
) -> None:
    sink = Redis(redis.address, command, key_prefix=new_prefix())
    client(redis.address).set(f"{sink.key_prefix}text", "words")
    client(redis.address).rpush(f"{sink.key_prefix}list", "entry")
    with pytest.raises(RowRefusedError) as failure:
        prepare(sink, batch(**rows))
    assert said in str(failure.value).replace(sink.key_prefix, "")
    assert len(list(client(redis.address).scan_iter(f"{sink.key_prefix}*"))) == 2, "nothing was published"
    assert list(sink.open_transactions(JOB)) == []


def test_a_decided_row_that_is_refused_stops_there_and_goes_on_later(
    redis: Server, sink: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody changes the type of a key in between. The rows before it are applied once, whatever happens."""
    committable = prepare(sink, batch(key=["a", "b", "c"], value=["1", "1", "1"]))
    asked = client(redis.address)
    asked.rpush(f"{sink.key_prefix}b", "entry")
    for _ in range(2):
        assert sink.commit(committable) is Outcome.REFUSED
        assert asked.get(f"{sink.key_prefix}a") == b"1"
        assert asked.get(f"{sink.key_prefix}c") is None
    assert "WRONGTYPE" in caplog.text
    assert f"{sink.key_prefix}b" in caplog.text
    asked.delete(f"{sink.key_prefix}b")
    assert sink.commit(committable) is Outcome.COMMITTED
    assert set(found(redis.address, f"{sink.key_prefix}*").values()) == {b"1"}


def test_a_zombie_is_refused_by_the_guard(redis: Server, sink: Redis) -> None:
    """A driver whose attempt is over, though what it staged is still there; and a task that begins or adds too late."""
    rows = batch(key=["k"], value=["1"])
    late = prepare(sink, rows, generation=1)
    zombie = sink.begin_transaction(context(generation=1, task=8))
    assert sink.commit(prepare(sink, rows, generation=2)) is Outcome.COMMITTED
    assert sink.commit(late) is Outcome.EXPIRED
    with pytest.raises(SinkError, match="epoch 0 of generation 1 comes too late: epoch 0 of generation 2 has begun"):
        sink.begin_transaction(context(generation=1, task=9))
    for one in sink.open_transactions(JOB):
        sink.abort(one.committable)
    with pytest.raises(SinkError, match="was rolled back"):
        sink.write(zombie, rows)
    with pytest.raises(SinkError, match="was rolled back"):
        sink.pre_commit(zombie)
    assert client(redis.address).get(f"{sink.key_prefix}k") == b"1"
    sink.begin_transaction(context(generation=1, job=OTHER_JOB))


def test_a_recovered_epoch_is_not_taken_for_a_zombies(redis: Server, sink: Redis) -> None:
    """The next driver commits what an earlier one decided before it begins anything of its own."""
    decided = prepare(sink, batch(key=["k"], value=["1"]), epoch=5, generation=1)
    assert sink.recover_and_commit(decided) is Outcome.COMMITTED
    assert sink.commit(prepare(sink, batch(key=["k"], value=["1"]), epoch=6, generation=2)) is Outcome.COMMITTED
    sink.settled(JOB, 6)
    names = [key.rpartition(":")[2] for key in held(redis.address, sink.keys(JOB).base)]
    assert len(names) == 1, "what is applied is remembered until the next epoch is settled"
    sink.settled(JOB, 7)
    assert held(redis.address, sink.keys(JOB).base) == []


def test_a_server_that_forgets_its_scripts(redis: Server, sink: Redis) -> None:
    committable = prepare(sink, batch(key=["k"], value=["1"]))
    client(redis.address).script_flush()
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_server_that_is_full_is_waited_for(tmp_path: Path) -> None:
    """Decided rows are asked for again until there is room; new ones fail clearly. Nothing is applied in part."""
    with started(Server(tmp_path / "redis")) as server:
        sink, asked = Redis(server.address, "incrby", key_prefix="k:"), client(server.address)
        committable = prepare(sink, batch(key=["a", "b"], value=["1", "1"]))
        asked.config_set("maxmemory", "100kb")
        assert sink.commit(committable).unsettled
        with pytest.raises(SinkError, match="maxmemory"):
            prepare(sink, batch(key=["a"], value=["1"]), epoch=1)
        assert asked.exists("k:a", "k:b") == 0
        asked.config_set("maxmemory", "0")
        assert sink.commit(committable) is Outcome.COMMITTED
        assert found(server.address, "k:*") == {"k:a": b"1", "k:b": b"1"}


def checked(server: Server, **settings: Any) -> str:
    with pytest.raises(SinkError) as failure:
        Redis(server.address, **settings).check(JobContext())
    assert SECRET not in str(failure.value)
    return str(failure.value)


def test_what_would_lose_rows_is_said_before_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"maxmemory-policy": "allkeys-lru", "requirepass": SECRET, "appendonly": "no"}
    with started(Server(tmp_path / "redis", settings=settings)) as server:
        assert "authenticated" in checked(server)
        assert "invalid username-password pair" in checked(server, options={"password": "wrong"})
        sink = Redis(server.address, options={"password": SECRET})
        assert "maxmemory-policy allkeys-lru" in checked(server, options={"password": SECRET})
        sink.client.config_set("maxmemory-policy", "volatile-lru")
        with caplog.at_level(logging.WARNING):
            sink.check(JobContext())
            assert "appendonly no" in caplog.text
            sink.client.config_set("appendonly", "yes")
            sink.client.config_set("appendfsync", "everysec")
            sink.check(JobContext())
            assert "appendfsync everysec" in caplog.text
        sink.client.execute_command("ACL", "SETUSER", "limited", "on", f">{SECRET}", "~x:*", "+@all")
        assert "ACL SETUSER" in checked(server, options={"username": "limited", "password": SECRET})
        assert SECRET not in f"{sink!r} {sink.target} {caplog.text}"
        asked = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
        assert SECRET not in asked


def test_a_replica_and_a_cluster_are_refused(redis: Server, tmp_path: Path) -> None:
    with started(Server(tmp_path / "replica", settings={"replicaof": f"127.0.0.1 {redis.ports[0]}"})) as server:
        assert "is a replica" in checked(server)
    # its second port would be the first one plus 10,000: among the ports of outgoing connections, which come and go
    cluster = {"cluster-enabled": "yes", "cluster-port": str(free_ports(1)[0])}
    with started(Server(tmp_path / "cluster", settings=cluster)) as server:
        assert "is a node of a cluster" in checked(server)


def test_nobody_answers() -> None:
    with pytest.raises(SinkError, match=r"127.0.0.1:1/0 does not do what is needed"):
        Redis("redis://127.0.0.1:1/0").check(JobContext())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "flushall"}, "needed one of set, incrby, zadd, hset, xadd"),
        ({"prefix": ""}, "prefix one that is not empty"),
        ({"key_prefix": "tallystick:mine:"}, "are for staged rows"),
        ({"options": {"decode_responses": True}}, "decode_responses is set by tallystick"),
    ],
)
def test_what_cannot_be_meant(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Redis("redis://localhost/0", **settings)


def test_an_address_that_is_none_is_not_shown() -> None:
    with pytest.raises(ConfigError) as failure:
        Redis(f"http://user:{SECRET}@host/0")
    assert SECRET not in str(failure.value)
    assert failure.value.__cause__ is None
