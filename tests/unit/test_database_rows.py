"""Rows on their way to PostgreSQL and Redis, without a server: what was encoded reads back as what was given."""

from __future__ import annotations

import csv
import io
import itertools
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import SinkError
from tallystick.records import Attempt, Outcome
from tallystick.sinks.base import SliceContext
from tallystick.sinks.postgresql import rows as csv_rows
from tallystick.sinks.postgresql.catalog import Column, Target
from tallystick.sinks.postgresql.failures import outcome_of
from tallystick.sinks.postgresql.keys import Watch, can_be_watched
from tallystick.sinks.postgresql.names import Name, prefix_of
from tallystick.sinks.postgresql.shape import fits
from tallystick.sinks.redis import rows as redis_rows
from tallystick.sinks.redis.keys import Keys

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.integers(0, 10**9), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(0, 10**8), st.text(min_size=1))
def test_a_name_prints_and_parses(epoch: int, generation: int, number: int, task: int, job: str) -> None:
    made = Name(prefix_of(job, "t"), Attempt(epoch, generation), number, task)
    assert Name.parse(str(made)) == made
    assert prefix_of(job, "t") != prefix_of(job, "u")


@pytest.mark.parametrize("text", ["", "tallystick/a/xyz/1.1-1-1", "tallystick/a/0f/01.1-1-1", "other/a/0f/1.1-1-1"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(SinkError, match="is not the name of a transaction"):
        Name.parse(text)


def test_a_name_that_the_server_would_cut_is_refused() -> None:
    with pytest.raises(SinkError, match="longer than 63"):
        Name.of(prefix_of("x" * 12, "t"), SliceContext("x" * 12, Attempt(10**12, 10**7), "s", 10**6, 10**12))


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | TEXTS), max_size=30))
def test_csv_reads_back_and_tells_null_from_empty(rows: list[tuple[int, str | None]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())], ["n", "t"]
    )
    text = b"".join(map(bytes, csv_rows.blocks(batch))).decode()
    read = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert [(int(n), t) for n, t in read] == [(n, t or "") for n, t in rows]
    assert text.count(',""') >= sum(t == "" for _, t in rows)


@given(st.lists(st.tuples(st.none() | TEXTS, TEXTS), min_size=1, max_size=20))
def test_a_line_leads_back_to_its_row(rows: list[tuple[str | None, str]]) -> None:
    """The server counts the lines of the text; a row ends with the last line of its last value. Before it has seen the
    end of a row, it takes a return for what ends lines."""
    columns = [pa.array([row[column] for row in rows], pa.string()) for column in (0, 1)]
    batch = pa.RecordBatch.from_arrays(columns, ["a", "b"])
    line = 0
    for place, row in enumerate(rows):
        line += 1 + sum(value.count("\n" if place else "\r") for value in row if value is not None)
        assert csv_rows.row_at(batch, f'COPY stage/0f, line {line}, column a: "x"') == place
    assert csv_rows.row_at(batch, f"COPY t, line {line + 1}") is None
    assert csv_rows.row_at(batch, "SQL statement") is None
    assert csv_rows.row_at(batch, None) is None


def test_blocks_are_bounded() -> None:
    batch = pa.RecordBatch.from_pydict({"t": ["x" * 1000] * 20_000})
    sizes = [len(block) for block in csv_rows.blocks(batch)]
    assert sum(sizes) == 20_000 * 1003
    assert max(sizes) <= 1.1 * csv_rows.BLOCK_BYTES


def test_a_row_is_called_by_its_key() -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "t": ["a", "b" * 1000]})
    assert csv_rows.shown(batch, 1, ["id"]) == '{"id": 2}'
    assert len(csv_rows.shown(batch, 1, [])) == csv_rows.SHOWN + 1


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (None, Outcome.UNKNOWN),
        ("08006", Outcome.RETRY_LATER),
        ("25006", Outcome.RETRY_LATER),
        ("28P01", Outcome.RETRY_LATER),
        ("40P01", Outcome.RETRY_LATER),
        ("53100", Outcome.RETRY_LATER),
        ("57P01", Outcome.RETRY_LATER),
        ("XX000", Outcome.RETRY_LATER),
        ("23505", Outcome.REFUSED),
        ("42501", Outcome.REFUSED),
        ("P0001", Outcome.REFUSED),
    ],
)
def test_what_an_answer_means_for_a_commit(state: str | None, outcome: Outcome) -> None:
    error = Exception("said")
    error.sqlstate = state  # type: ignore[attr-defined]
    assert outcome_of(error) is outcome


@pytest.mark.parametrize(
    ("ours", "theirs", "fit"),
    [
        ("bigint", "numeric(10,2)", True),
        ("bigint", "character varying(9)", True),
        ("bigint", "boolean", False),
        ("text", "uuid", True),
        ("jsonb", "json", True),
        ("jsonb", "integer", False),
        ("date", "timestamp with time zone", True),
        ("bytea", "integer", False),
        ("numeric(38,6)", "real", True),
        ("numeric(38,6)", "date", False),
    ],
)
def test_which_types_fit(ours: str, theirs: str, fit: bool) -> None:
    assert fits(ours, theirs) is fit


def decoded(chunk: bytes) -> Iterator[list[bytes]]:
    """As the scripts take a chunk apart."""
    at = 0
    while at < len(chunk):
        (count,) = struct.unpack_from(">I", chunk, at)
        at += 4
        arguments = []
        for _ in range(count):
            (size,) = struct.unpack_from(">I", chunk, at)
            arguments.append(chunk[at + 4 : at + 4 + size])
            at += 4 + size
        yield arguments


@given(st.lists(st.tuples(TEXTS, TEXTS, st.none() | TEXTS), max_size=30), st.sampled_from(redis_rows.COMMANDS), TEXTS)
def test_chunks_hold_the_arguments_of_commands(
    rows: list[tuple[str, str, str | None]], command: str, prefix: str
) -> None:
    names = {"hset": ("key", "f", "née"), "xadd": ("key", "f", "née"), "zadd": ("key", "score", "member")}
    columns = names.get(command, ("key", "value"))
    given = [row if command in redis_rows.FIELDS else tuple(cell or "" for cell in row) for row in rows]
    cells = {name: pa.array([row[n] for row in given], pa.string()) for n, name in enumerate(columns)}
    batch = pa.RecordBatch.from_pydict({**cells, "ballast": pa.nulls(len(rows), pa.string())})
    batch = batch if command in redis_rows.FIELDS else batch.select(list(columns))
    found = [row for chunk in redis_rows.chunks(batch, command, prefix) for row in decoded(chunk)]
    assert found == [list(expected(row, columns, command, prefix)) for row in given]


def expected(row: tuple[str | None, ...], columns: tuple[str, ...], command: str, prefix: str) -> Iterator[bytes]:
    yield (prefix + (row[0] or "")).encode()
    if command == "xadd":
        yield b"*"
    for name, cell in zip(columns[1:], row[1:], strict=False):
        if cell is not None:
            yield from (name.encode(), cell.encode()) if command in redis_rows.FIELDS else (cell.encode(),)


def test_chunks_are_cut_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_rows, "CHUNK_ROWS", 3)
    monkeypatch.setattr(redis_rows, "CHUNK_BYTES", 60)
    values = ["a", "b", "c", "d", "x" * 100, "e"]
    batch = pa.RecordBatch.from_pydict({"key": list("123456"), "value": values}).slice(1)
    cut = [[row[1].decode() for row in decoded(chunk)] for chunk in redis_rows.chunks(batch, "set", "")]
    assert cut == [["b", "c", "d"], ["x" * 100], ["e"]]


def test_a_row_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_rows, "ROW_BYTES_MAX", 50)
    batch = pa.RecordBatch.from_pydict({"key": ["small", "large"], "value": ["x", "x" * 100]})
    [found] = redis_rows.screen(batch, "set", "")
    assert str(redis_rows.refusal(batch, found)).startswith(
        "redis: the row with the key 'large' has 117 bytes, needed at most 50"
    )
    assert [len(chunk) for chunk in redis_rows.chunks(batch.slice(1), "set", "")] == [117]


def test_keys_of_different_jobs_and_targets_differ() -> None:
    one = Keys.of("p", "job:1", "set ", "000000000003.0000002-000004-000000005")
    assert (one.attempt, one.number) == (Attempt(3, 2), 4)
    assert one.slice.startswith("p:job%3A1:")
    assert Keys.of("p", "job:1", "incrby ", "").base != one.base


@given(st.lists(st.lists(st.none() | st.integers(-20, 20), max_size=6), max_size=4))
def test_watched_keys_rise_only_if_no_two_are_equal_and_all_are_within_the_bounds(
    batches: list[list[int | None]],
) -> None:
    watch = Watch("n")
    for numbers in filter(None, batches):
        watch.see(pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], ["n"]))
    seen = [number for numbers in batches for number in numbers]
    known = [number for number in seen if number is not None]
    rises = len(known) == len(seen) and all(one < other for one, other in itertools.pairwise(known))
    assert watch.rising == rises
    assert watch.bounds == ((min(known), max(known)) if known else None)


@pytest.mark.parametrize(
    ("rows", "table", "watched"),
    [
        (pa.int32(), "bigint", True),
        (pa.int64(), "real", False),
        (pa.int64(), "text", False),
        (pa.string(), "text", False),
    ],
)
def test_keys_are_watched_where_different_numbers_stay_different(rows: pa.DataType, table: str, watched: bool) -> None:
    target = Target("r", "p", 0, (Column("n", table, False, False),), (), False, False)
    assert can_be_watched(target, pa.schema([("n", rows)]), ["n"]) is watched
    assert not can_be_watched(target, pa.schema([("n", rows), ("m", rows)]), ["m", "n"])
