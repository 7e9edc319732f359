"""Batches as Kafka's own reader in Python takes them, whichever way they were made."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_one
from kafka.record.default_records import DefaultRecordBatch

from tallystick.errors import SinkError
from tallystick.sinks.kafka import batches
from tallystick.sinks.kafka.batches import HEAD_BYTES, Compression, bodies, record_bytes, resealed, sealed
from tallystick.sinks.kafka.placement import by_key, murmur2, place_of
from tallystick.sinks.kafka.producer import Records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

data = st.none() | st.binary(max_size=300)
rows = st.tuples(data, data, st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=2))


def records(given: list[Row], keys: bool = True, headers: bool = True) -> Records:
    named = [[{"key": name, "value": value} for name, value in pairs] for _, _, pairs in given]
    return Records(
        "t",
        pa.array([value for value, _, _ in given], pa.binary()),
        pa.array([key for _, key, _ in given], pa.binary()) if keys else None,
        None,
        pa.array(named, HEADERS) if headers else None,
    )


def read(data: bytes) -> DefaultRecordBatch:
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert batch.is_transactional
    return batch


def made(given: Records, batch_bytes: int) -> list[bytes]:
    plain = Compression.of("none")
    return [sealed(body.records, body.count, 7, 3, 11, plain) for body in bodies(given, batch_bytes)]


@given(st.lists(rows, max_size=80), st.booleans(), st.booleans(), st.sampled_from([100, 700, 1_000_000]), st.booleans())
def test_what_goes_in_comes_out(
    given: list[Row], keys: bool, headers: bool, batch_bytes: int, one_by_one: bool
) -> None:
    before = batches.FEW
    batches.FEW = 10_000 if one_by_one else 0
    try:
        found = [read(batch) for batch in made(records(given, keys, headers), batch_bytes)]
    finally:
        batches.FEW = before
    expected = [(value, key if keys else None, [*pairs] if headers else []) for value, key, pairs in given]
    assert [(one.value, one.key, one.headers) for batch in found for one in batch] == expected
    for batch in found:
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 11)


@given(st.lists(rows, max_size=60), st.booleans())
def test_both_ways_make_the_same_bytes(given: list[Row], keys: bool) -> None:
    given_records = records(given, keys)

    def made_with(few: int) -> list[tuple[int, bytes, int]]:
        before, batches.FEW = batches.FEW, few
        try:
            return [(body.count, body.records.to_pybytes(), body.largest) for body in bodies(given_records, 900)]
        finally:
            batches.FEW = before

    assert made_with(0) == made_with(10_000)


def test_no_batch_is_larger_than_it_may_be_unless_one_record_is() -> None:
    draw = random.Random(5)
    given: list[Row] = [(bytes(draw.randrange(2000)), b"k" * draw.randrange(50), []) for _ in range(3000)]
    found = made(records(given, headers=False), 5000)
    assert max(map(len, found)) <= 5000
    assert len(found) < 2 * sum(len(value or b"") + len(key or b"") for value, key, _ in given) / 5000
    [alone, _] = made(records([(b"x" * 9000, None, []), (b"y", None, [])]), 5000)
    assert len(alone) > 9000 + HEAD_BYTES


@given(st.lists(rows, max_size=80), st.lists(st.integers(1, 79)), st.sampled_from([300, 1_000_000]), st.booleans())
def test_another_batch_begins_at_every_cut(
    given: list[Row], drawn: list[int], batch_bytes: int, one_by_one: bool
) -> None:
    """As if the records between two cuts had been given alone."""
    cuts, whole = sorted(cut for cut in set(drawn) if cut < len(given)), records(given)
    before, batches.FEW = batches.FEW, 10_000 if one_by_one else 0
    try:
        found = list(bodies(whole, batch_bytes, cuts))
        alone = [
            (first + body.first, first + body.largest, body.count, body.records.to_pybytes())
            for first, last in itertools.pairwise([0, *cuts, len(given)])
            for body in bodies(whole.slice(first, last - first), batch_bytes)
        ]
    finally:
        batches.FEW = before
    assert [(body.first, body.largest, body.count, body.records.to_pybytes()) for body in found] == alone


def test_the_same_batch_from_another_producer() -> None:
    [data] = made(records([(b"v", b"k", [("h", b"1")])]), 1000)
    batch = read(resealed(data, 99, 4))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (99, 4, 11)
    assert [(one.key, one.value) for one in batch] == [(b"k", b"v")]


def test_a_window_into_a_larger_array() -> None:
    given: list[Row] = [(b"v%d" % n if n % 3 else None, b"k%d" % n if n % 4 else None, []) for n in range(100)]
    whole = records(given, headers=False)
    found = [(one.value, one.key) for batch in made(whole.slice(13, 60), 400) for one in read(batch)]
    assert found == [(value, key) for value, key, _ in given[13:73]]


def test_sizes_are_of_keys_values_and_headers() -> None:
    assert record_bytes(records([(b"abc", b"de", [("n", b"12"), ("m", None)]), (None, None, [])])).tolist() == [9, 0]


def test_what_is_not_binary_is_refused() -> None:
    with pytest.raises(SinkError, match="keys and values are binary, found string"):
        list(bodies(Records("t", pa.array(["text"])), 1000))


# -- partitions --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=50), st.integers(0, 10))
def test_keys_are_hashed_as_java_does(keys: list[bytes], skipped: int) -> None:
    """kafka-python's function is tested against Java's values."""
    found: Any = murmur2(pa.array(keys, pa.binary())[skipped:])
    assert found.tolist() == [murmur2_of_one(key) & 0xFFFFFFFF for key in keys[skipped:]]


def test_a_key_has_one_partition() -> None:
    keys = [b"key%d" % n for n in range(1000)]
    places = by_key(pa.array(keys, pa.binary()), 7).tolist()
    assert places == [place_of(key, 7) for key in keys] == [(murmur2_of_one(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert set(places) == set(range(7))
