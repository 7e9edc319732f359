"""Sources with a receiver, and Kinesis, as declared: what is refused, what is shown, what is never shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.errors import ConfigError, MissingExtraError, SourceError
from tallystick.receiver import Record
from tallystick.receiver.inlets import inlet_of
from tallystick.receiver.process import ReceiverSpec
from tallystick.records import Mode
from tallystick.sources import Kinesis, RabbitMQ, ReceiverSettings, Socket, Source, XStream
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_shards import BEGINNING, Shard, first_shards, in_words, known_shards

URL = "amqp://reader:hunter2@broker:5672/%2F"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Socket("log"), "needed either listen="),
        (lambda: Socket("log", listen="a:1", connect="b:2"), "needed either listen="),
        (lambda: Socket("log", listen="nowhere"), "not an address: 'nowhere'"),
        (lambda: Socket("log", listen="a:0"), "not an address"),
        (lambda: Socket("log", listen="a:1", framing="words"), "framing is 'words'"),
        (lambda: Socket("log", listen="a:1", encoding="klingon"), "no encoding 'klingon'"),
        (lambda: Socket("log", connect="a:1", framing="datagrams"), "datagrams are received with listen="),
        (lambda: Socket("", listen="a:1"), "needed a folder for the receiver log"),
        (lambda: Socket("log", listen="a:1", partitions=0), "partitions is 0"),
        (lambda: Socket("log", listen="a:1", receiver={}), "receiver is a dict"),  # type: ignore[arg-type]
        (lambda: RabbitMQ("log", "http://x", "q"), "the url is none"),
        (lambda: RabbitMQ("log", URL, ""), "needed the name of a queue"),
        (lambda: RabbitMQ("log", URL, "q", stream="middle"), "stream is 'middle'"),
        (lambda: RabbitMQ("log", URL, "q", ids=()), "ids is"),
        (lambda: RabbitMQ("log", URL, "q", ids="message_id"), "ids is 'message_id'"),
        (lambda: RabbitMQ("log", URL, "q", prefetch=60_000), "at least twice the prefetch"),
        (lambda: XStream("log", url="ftp://x"), "url is 'ftp://x'"),
        (lambda: XStream("log", backfill_minutes=6), "needed 0 to 5"),
        (lambda: XStream("log", parameters={"backfill_minutes": "5"}), "declare backfill_minutes="),
        (lambda: XStream("log", silence="0s"), "silence is '0s'"),
        (lambda: Kinesis(""), "needed the name of a stream"),
        (lambda: Kinesis("s", starting="yesterday"), "starting is 'yesterday'"),
        (lambda: Kinesis("s", max_records_per_epoch=0), "max_records_per_epoch is 0"),
        (lambda: ReceiverSettings(bad_records="drop"), "bad_records is 'drop'"),
        (lambda: ReceiverSettings(run="somewhere"), "run is 'somewhere'"),
        (lambda: ReceiverSettings(max_bytes=100, segment_bytes=80), "less than two segments"),
        (lambda: ReceiverSettings(keep="forever"), "not a duration"),
    ],
)
def test_a_wrong_source_is_refused_when_it_is_declared(wrong: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong()


SOURCES: list[Source] = [
    Socket("log", listen="127.0.0.1:9999"),
    RabbitMQ("log", URL, "orders"),
    XStream("log"),
    Kinesis("clicks"),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.facts.name))
def test_passwords_are_shown_nowhere(source: Source) -> None:
    assert "hunter2" not in repr(source) + source.name + str(getattr(source, "spec", lambda: "")())


def test_a_spec_prints_and_parses() -> None:
    made = RabbitMQ("log", URL, "orders").spec()
    again = ReceiverSpec.from_json(made.to_json())
    assert again == made
    assert again.inlet["url"] == URL


def test_a_job_builds_on_what_was_received(tmp_path: Path) -> None:
    job = ts.Job(
        "clicks",
        source=Socket(tmp_path / "log", listen="127.0.0.1:9999"),
        sink=ts.sinks.Files(tmp_path / "out"),
        checkpoint=tmp_path / "checkpoint",
    )
    assert Socket.facts.guarantee is Mode.AT_MOST_ONCE
    assert job.explanation.guarantee is Mode.EXACTLY_ONCE
    assert "from receipt" in job.explanation.nodes[0].mechanism


def test_a_missing_library_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[rabbitmq\]'"):
        inlet_of(RabbitMQ("log", URL, "orders").inlet()).open(None)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[kinesis\]'"):
        KinesisClient("clicks", None, None).shards()


def test_a_log_of_a_queue_is_not_continued_as_that_of_a_stream() -> None:
    inlet = inlet_of(RabbitMQ("log", URL, "orders", stream="first").inlet())
    with pytest.raises(SourceError, match="holds messages of a queue"):
        inlet.open(Record(b"x", "an id"))


def test_an_inlet_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="no inlet 'pigeon': needed one of rabbitmq, socket, x-stream"):
        inlet_of({"kind": "pigeon"})


# --- shards


def shard(name: str, *parents: str) -> Shard:
    return Shard(name, parents, range(1))


def test_children_wait_for_all_their_parents() -> None:
    shards = [shard("a"), shard("b"), shard("c", "a", "b")]
    assert first_shards(shards) == ["a", "b"]
    assert known_shards({"a": "1!", "b": "2"}, shards) == {"a": "1!", "b": "2"}
    assert known_shards({"a": "1!", "b": "2!"}, shards) == {"a": "1!", "b": "2!", "c": BEGINNING}


def test_parents_that_are_forgotten_do_not_hold_their_children_up() -> None:
    assert known_shards({"a": "1!"}, [shard("b", "a")]) == {"b": BEGINNING}
    assert known_shards({}, [shard("b", "a"), shard("c", "b")]) == {"b": BEGINNING}


def test_a_parent_is_not_read_again_after_its_children_have_begun() -> None:
    assert known_shards({"b": "5"}, [shard("a"), shard("b", "a")]) == {"b": "5"}


def test_a_shard_that_is_gone_and_not_read_stays_so_that_it_is_noticed() -> None:
    assert known_shards({"a": "1"}, [shard("b", "a")])["a"] == "1"


def test_positions_in_words() -> None:
    positions = {"shardId-000000000000": "49" * 28, "shardId-000000000001": "-!", "shardId-000000000002": "@17.5"}
    assert in_words(positions) == "0=…494949494949 1=beginning (closed) 2=since 17.5"
