"""The Kinesis source's reader on a real server: resharding, restarts anywhere, throttling, expiry, bad input."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable
from typing import Any

import botocore.exceptions
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from kinesis_resharding import REGION, client, make_stream, merge, open_shards, put, split
from tallystick.errors import SourceError
from tallystick.kinesis.marks import Mark, hash_key
from tallystick.servers.kinesis import Kinesis
from tallystick.sources.kinesis_aggregated import MAGIC, hash_of, unpack
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_reader import KinesisStreamReader, ShardRange, Stream

EVERYTHING = range(1 << 128)


def reader(server: Kinesis, stream: str, per_epoch: int = 10) -> KinesisStreamReader:
    return KinesisStreamReader(Stream(KinesisClient(stream, REGION, server.address), "earliest", per_epoch))


def rows(of: KinesisStreamReader, start: Any, end: Any) -> list[list[tuple[str, int]]]:
    """Shard and number of every row, partition by partition; read where a task would, after a trip by pickle."""
    parts = of.partitions(start, end)
    task = pickle.loads(pickle.dumps(of))
    return [
        [(row["shard"], int(row["value"])) for batch in task.read(part) for row in batch.to_pylist()] for part in parts
    ]


def to_the_end(of: KinesisStreamReader, start: Any) -> list[tuple[Any, Any, list[list[tuple[str, int]]]]]:
    """Every epoch until nothing is left: its offsets, and what it gave."""
    made = []
    of.prepareForTriggerAvailableNow()
    while (end := of.latestOffset(start, ReadMaxRows(10))) != start:
        made.append((start, end, rows(of, start, end)))
        start = end
    return made


def test_parents_before_children_through_splits_and_merges(kinesis: Kinesis) -> None:
    address = kinesis.address
    stream = make_stream(address, shards=2)
    put(address, stream, range(30))
    split(address, stream, open_shards(address, stream)[0])
    put(address, stream, range(30, 60))
    third, fourth = sorted(
        open_shards(address, stream), key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"])
    )[:2]
    merge(address, stream, third, fourth)
    put(address, stream, range(60, 90))
    first = reader(kinesis, stream)
    epochs = to_the_end(first, first.initialOffset())
    given = [row for _, _, parts in epochs for part in parts for row in part]
    assert sorted(number for _, number in given) == list(range(90))
    assert len(epochs) > 5

    parents = {shard.name: shard.parents for shard in KinesisClient(stream, REGION, address).shards()}
    last_of: dict[str, int] = {}
    for number, (_, _, parts) in enumerate(epochs):
        for shard in {shard for part in parts for shard, _ in part}:
            assert all(last_of.get(parent, -1) < number for parent in parents[shard])
            assert not any(shard in parents[begun] for begun in last_of), "a parent was read after its child"
            last_of[shard] = number
    assert len(last_of) == 5, "two, two from the split, one from the merge"

    for start, end, parts in epochs:  # a restart anywhere: nothing is read ahead, the tasks ask Kinesis again
        assert rows(reader(kinesis, stream), start, end) == parts
    middle = epochs[len(epochs) // 2][0]
    rest = to_the_end(reader(kinesis, stream), middle)
    expected = [row for _, _, parts in epochs[len(epochs) // 2 :] for part in parts for row in part]
    assert sorted(row for _, _, parts in rest for part in parts for row in part) == sorted(expected)


def test_nothing_new_is_no_epoch_and_a_limit_is_kept(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    made = reader(kinesis, stream)
    start = made.initialOffset()
    assert made.latestOffset(start, ReadMaxRows(10)) == start
    put(kinesis.address, stream, range(25))
    sizes = []
    while (end := made.latestOffset(start, ReadMaxRows(10))) != start:
        sizes.append(sum(map(len, rows(made, start, end))))
        start = end
    assert sizes == [10, 10, 5]


def test_starting_with_the_latest_reads_only_what_comes(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    put(kinesis.address, stream, range(5))
    time.sleep(1.1)
    made = KinesisStreamReader(Stream(KinesisClient(stream, REGION, kinesis.address), "latest", 100))
    start = made.initialOffset()
    put(kinesis.address, stream, range(5, 8))
    end = made.latestOffset(start, ReadMaxRows(100))
    assert [number for part in rows(made, start, end) for _, number in part] == [5, 6, 7]


def failing_once(real: Callable[..., Any], code: str, times: int = 1) -> Callable[..., Any]:
    left = [times]

    def call(**request: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise botocore.exceptions.ClientError({"Error": {"Code": code, "Message": "on purpose"}}, "GetRecords")
        return real(**request)

    return call


@pytest.mark.parametrize(
    ("code", "counted"),
    [("ProvisionedThroughputExceededException", "throttled"), ("ExpiredIteratorException", "expired")],
)
def test_throttling_and_expired_iterators_are_waited_for(kinesis: Kinesis, code: str, counted: str) -> None:
    stream = make_stream(kinesis.address, shards=1)
    put(kinesis.address, stream, range(5))
    made = reader(kinesis, stream)
    start = made.initialOffset()
    made._client._made.get_records = failing_once(made._client._made.get_records, code)
    end = made.latestOffset(start, ReadMaxRows(10))
    assert [number for part in rows(made, start, end) for _, number in part] == list(range(5))
    assert getattr(made._client, counted) == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("UnrecognizedClientException", "refuses these credentials"),
        ("ResourceNotFoundException", "has no stream"),
        ("InvalidArgumentException", "retention has passed"),
    ],
)
def test_what_cannot_be_mended_is_told(kinesis: Kinesis, code: str, says: str) -> None:
    stream = make_stream(kinesis.address, shards=1)
    made = reader(kinesis, stream)
    start = made.initialOffset()
    made._client._made.get_records = failing_once(made._client._made.get_records, code)
    with pytest.raises(SourceError, match=says):
        made.latestOffset(start, ReadMaxRows(10))


def test_a_stream_that_is_not_there_is_told(kinesis: Kinesis) -> None:
    with pytest.raises(SourceError, match="has no stream 'nothing'"):
        reader(kinesis, "nothing").initialOffset()


def test_a_pause_longer_than_retention_is_an_error_if_the_last_record_is_gone(kinesis: Kinesis) -> None:
    stream, other = make_stream(kinesis.address, shards=1), make_stream(kinesis.address, shards=1)
    for each in (stream, other):
        put(kinesis.address, each, range(3))
    made = reader(kinesis, stream)
    end = made.latestOffset(made.initialOffset(), ReadMaxRows(10))
    long_ago = {**end, "read_at": end["read_at"] - 25 * 3600}
    assert reader(kinesis, stream).latestOffset(long_ago, ReadMaxRows(10)) == long_ago, "it is all still there"
    [(name, sequence)] = end["shards"].items()
    never = {**long_ago, "shards": {name: str(int(sequence) + 1)}}
    with pytest.raises(SourceError, match=r"may be gone|retention has passed"):
        reader(kinesis, stream).latestOffset(never, ReadMaxRows(10))


def test_records_to_be_read_again_that_are_gone_are_an_error(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    put(kinesis.address, stream, range(3))
    made = reader(kinesis, stream)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadMaxRows(10))
    [part] = reader(kinesis, stream).partitions(start, end)
    assert isinstance(part, ShardRange)
    part.end = str(int(part.end) + 16)
    with pytest.raises(SourceError, match="are to be read again, but are gone"):
        list(made.read(part))


# --- repeats of our own sink


def put_marked(address: str, stream: str, epoch: int, ordinals: range, generation: int = 1) -> None:
    """As the sink does it: the number is the data, and the key chooses the shard."""
    for ordinal in ordinals:
        number = str(100 * epoch + ordinal)
        key = Mark("job-a", epoch, generation, 0, ordinal).partition_key(number)
        client(address).put_record(
            StreamName=stream, Data=number.encode(), PartitionKey=key, ExplicitHashKey=hash_key(number)
        )


def test_repeats_of_our_own_sink_are_dropped_over_restarts_and_resharding(kinesis: Kinesis) -> None:
    address = kinesis.address
    stream = make_stream(address, shards=1)
    put_marked(address, stream, 0, range(10))
    put_marked(address, stream, 1, range(15))
    put_marked(address, stream, 0, range(5), generation=2)  # of a driver taken for dead
    put_marked(address, stream, 1, range(8), generation=2)  # the epoch is sent again, and the job is killed
    put(address, stream, [9000])  # somebody else's
    split(address, stream, open_shards(address, stream)[0])
    put_marked(address, stream, 1, range(20), generation=3)  # and again: into the children
    put_marked(address, stream, 2, range(10), generation=3)
    expected = [*range(10), *range(100, 120), *range(200, 210), 9000]
    first = reader(kinesis, stream)
    epochs = to_the_end(first, first.initialOffset())
    found = [number for _, _, parts in epochs for part in parts for _, number in part]
    assert sorted(found) == expected
    for number, (start, end, parts) in enumerate(epochs):  # a restart anywhere
        again = [part for part in rows(reader(kinesis, stream), start, end) if part]
        assert again == [part for part in parts if part], f"epoch {number} was not the same again"
        rest = to_the_end(reader(kinesis, stream), start)
        done = [value for _, _, before in epochs[:number] for part in before for _, value in part]
        assert sorted(done + [value for _, _, then in rest for part in then for _, value in part]) == expected


# --- aggregated records


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def packed(*records: tuple[str, bytes]) -> bytes:
    """As the producer library writes it."""
    keys = sorted({key for key, _ in records})
    message = b"".join(field(1, key.encode()) for key in keys)
    for key, data in records:
        message += field(3, field(1, keys.index(key)) + field(3, data))
    return MAGIC + message + hashlib.md5(message).digest()


def test_packed_records_are_unpacked_in_order_and_others_are_left_alone(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    made = client(kinesis.address)
    for data in (b"1", packed(("a", b"2"), ("b", b"3"), ("a", b"4")), b"5"):
        made.put_record(StreamName=stream, Data=data, PartitionKey="k")
    source = reader(kinesis, stream)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(10))
    [part] = source.partitions(start, end)
    found = [row for batch in source.read(part) for row in batch.to_pylist()]
    assert [(row["value"], row["key"], row["sub"]) for row in found] == [
        (b"1", "k", 0),
        (b"2", "a", 0),
        (b"3", "b", 1),
        (b"4", "a", 2),
        (b"5", "k", 0),
    ]


def test_what_only_looks_packed_is_a_record_and_what_lies_is_an_error() -> None:
    good = packed(("a", b"x"))
    for data in (MAGIC, MAGIC + b"x" * 30, good[:-1] + b"?"):
        assert [each.data for each in unpack("k", data, EVERYTHING)] == [data]
    message = b"\x1a\x7f\x00"
    with pytest.raises(ValueError, match="field 3 has 127 bytes"):
        unpack("k", MAGIC + message + hashlib.md5(message).digest(), EVERYTHING)


def test_a_record_that_lies_stops_the_job_or_is_kept_as_it_is(kinesis: Kinesis) -> None:
    """By setting; never dropped. What is kept comes again in the same way."""
    stream = make_stream(kinesis.address, shards=1)
    message = b"\x1a\x7f\x00"
    lies = MAGIC + message + hashlib.md5(message).digest()
    for data in (b"1", lies, b"2"):
        client(kinesis.address).put_record(StreamName=stream, Data=data, PartitionKey="k")
    strict = reader(kinesis, stream)
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadMaxRows(10))
    with pytest.raises(SourceError, match=r"says that it is aggregated, and is not: .*malformed='keep'"):
        strict.partitions(start, end)
    keeping = KinesisStreamReader(Stream(KinesisClient(stream, REGION, kinesis.address), "earliest", 10, True))
    for _ in range(2):  # read ahead, and as a task after a restart
        [part] = keeping.partitions(start, end)
        found = [(row["value"], row["sub"]) for batch in keeping.read(part) for row in batch.to_pylist()]
        assert found == [(b"1", 0), (lies, -1), (b"2", 0)]


def test_a_stream_that_is_deleted_while_it_is_read_is_an_error(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    put(kinesis.address, stream, range(3))
    source = reader(kinesis, stream)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(10))
    client(kinesis.address).delete_stream(StreamName=stream)
    with pytest.raises(SourceError, match=f"Kinesis has no stream '{stream}'"):
        _poll(source, end)


def _poll(source: KinesisStreamReader, start: Any) -> None:
    """Deleting takes the server a moment."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        source.latestOffset(start, ReadMaxRows(10))
        time.sleep(0.1)


def test_a_packed_record_gives_only_what_belongs_to_its_shard() -> None:
    data = packed(("a", b"1"), ("b", b"2"))
    low, high = sorted((hash_of("a", None), hash_of("b", None)))
    assert {each.key for each in unpack("k", data, range(low, high))} == {"a" if hash_of("a", None) == low else "b"}
