"""Bytes, folders and shapes: what the parts of the file sink make of rows."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallystick.config import duration_s
from tallystick.errors import ConfigError, RowRefusedError
from tallystick.sinks import Files
from tallystick.sinks.base import JobContext
from tallystick.sinks.files.formats import FORMATS, LinesFile, OrcFile, ParquetFile, lines
from tallystick.sinks.files.partitions import NULL_NAME, escape, folder_of, split
from tallystick.sinks.files.shape import header_line
from tallystick.sinks.filesystem import Posix
from tallystick.testing.sinks import context

TEXTS = st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=5), max_size=20)


@given(TEXTS, st.integers(0, 20), st.integers(0, 20), st.sampled_from([pa.string(), pa.large_string()]))
def test_lines_are_exactly_the_values_of_a_window(
    texts: list[str | None], start: int, length: int, kind: pa.DataType
) -> None:
    window = pa.array(texts, kind).slice(min(start, len(texts)), length)
    expected = "".join(f"{value or ''}\n" for value in window.to_pylist())
    assert bytes(memoryview(lines(window))).decode() == expected


@pytest.mark.parametrize(
    ("compression", "decompress"),
    [
        ("none", lambda data: data),
        ("gzip", gzip.decompress),
        ("bzip2", bz2.decompress),
        ("zstd", lambda data: pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()),
        ("lz4", lambda data: pa.CompressedInputStream(pa.BufferReader(data), "lz4").read()),
    ],
)
def test_lines_go_through_every_compression(compression: str, decompress: Any, tmp_path: Path) -> None:
    codec, suffix = FORMATS["json"].compressions[compression]
    path = tmp_path / f"x{suffix}"
    writer = LinesFile(Posix().create(path), codec, header="h", breakable=True)
    writer.write(pa.RecordBatch.from_pydict({"v": ["a", "b"]}))
    writer.write(pa.RecordBatch.from_pydict({"v": ["c"]}))
    writer.close()
    assert decompress(path.read_bytes()) == b"h\na\nb\nc\n"


@pytest.mark.parametrize("text", ["a\nb", "a\rb"])
def test_a_text_row_with_a_line_break_is_refused(text: str, tmp_path: Path) -> None:
    writer = LinesFile(Posix().create(tmp_path / "x"), None, header=None, breakable=False)
    with pytest.raises(RowRefusedError, match="'v' has a line break"):
        writer.write(pa.RecordBatch.from_pydict({"v": ["fine", None, text]}))
    writer.discard()


@pytest.mark.parametrize("compression", FORMATS["parquet"].compressions)
def test_parquet_in_every_compression(compression: str, tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(100))})
    codec = FORMATS["parquet"].compressions[compression][0]
    writer = ParquetFile(Posix().create(tmp_path / "x"), batch.schema, codec, 1 << 20)
    writer.write(batch)
    writer.close()
    column = pq.ParquetFile(tmp_path / "x").metadata.row_group(0).column(0)
    expected = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert (column.compression, pq.read_table(tmp_path / "x").num_rows) == (expected, 100)


@pytest.mark.parametrize("compression", FORMATS["orc"].compressions)
def test_orc_in_every_compression(compression: str, tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(100))})
    codec = FORMATS["orc"].compressions[compression][0]
    writer = OrcFile(Posix().create(tmp_path / "x"), codec, 1 << 20)
    writer.write(batch)
    writer.close()
    file = orc.ORCFile(tmp_path / "x")
    assert (file.compression.lower(), file.read().num_rows) == (codec, 100)


def test_parquet_keeps_a_bounded_buffer_and_makes_row_groups_of_it(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(1000), pa.int64())})
    writer = ParquetFile(Posix().create(tmp_path / "x"), batch.schema, "snappy", group_bytes=4 * batch.nbytes)
    most = 0
    for _ in range(10):
        writer.write(batch)
        most = max(most, writer.buffered_bytes)
    writer.close()
    groups = pq.ParquetFile(tmp_path / "x").metadata
    assert most < 4 * batch.nbytes
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [4000, 4000, 2000]


def test_nanoseconds_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    sink = Files(tmp_path)
    sink.check(JobContext())
    transaction = sink.begin_transaction(context())
    sink.write(transaction, pa.RecordBatch.from_pydict({"at": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(RowRefusedError, match="lose data"):
        sink.pre_commit(transaction)
    sink.rollback(transaction)


def test_folder_names_are_those_of_spark() -> None:
    assert folder_of(["day", "a=b"], ["x/y:z ä.-_", None]) == f"day=x%2Fy%3Az ä.-_/a%3Db={NULL_NAME}"
    assert folder_of(["day"], [""]) == f"day={NULL_NAME}"
    assert escape("\x00\x1f\x7f\"#%'*/:=?\\{[]^") == "%00%1F%7F%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E"


def test_a_value_too_long_for_a_folder_is_refused_before_the_decision() -> None:
    with pytest.raises(RowRefusedError, match="'day' makes a folder name of 304 bytes"):
        folder_of(["day"], ["x" * 300])


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None, ""]), st.sampled_from([1, 2, None])), max_size=40),
    st.integers(0, 10),
)
def test_split_loses_and_mixes_nothing(keys: list[tuple[str | None, int | None]], skip: int) -> None:
    whole = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([k for k, _ in keys], pa.string()),
            "id": pa.array(range(len(keys)), pa.int64()),
            "n": pa.array([n for _, n in keys], pa.int32()),
        }
    )
    found: dict[str, list[int]] = {}
    for folder, part in split(whole.slice(skip), ["k", "n"]):
        assert part.schema.names == ["id"]
        found.setdefault(folder, []).extend(part.column(0).to_pylist())
    expected: dict[str, list[int]] = {}
    for number, (k, n) in list(enumerate(keys))[skip:]:
        expected.setdefault(folder_of(["k", "n"], [k, None if n is None else str(n)]), []).append(number)
    assert {folder: sorted(ids) for folder, ids in found.items()} == expected


def test_split_numbers_do_not_overflow() -> None:
    columns = {f"c{n}": [str(value) for value in range(10_000)] for n in range(6)}
    parts = list(split(pa.RecordBatch.from_pydict({**columns, "id": range(10_000)}), list(columns)[:6]))
    assert len(parts) == 10_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1s", 1), ("10 seconds", 10), ("5m", 300), ("1h", 3600), ("2 minutes", 120), ("1 Day", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("found", [1.5, 5, None, True, "", "5", "1.5s", "-1s", "5 parsecs", "s", "5 s s"])
def test_what_is_no_duration_is_named(found: Any) -> None:
    with pytest.raises(ConfigError, match="not a duration: ") as error:
        duration_s(found)
    assert repr(found) in str(error.value)


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


NESTED = t.ArrayType(t.LongType())


@pytest.mark.parametrize(
    ("settings", "schema", "text"),
    [
        ({"format": "csv"}, struct(a=t.LongType(), b=NESTED), "'b' has the type array<bigint>.* csv .*nested"),
        ({"format": "csv"}, struct(a=t.LongType(), b=t.MapType(t.LongType(), t.LongType())), "'b'.*nested"),
        ({"format": "csv"}, struct(a=t.LongType(), b=t.BinaryType()), "'b' has the type binary.*binary values"),
        ({"format": "csv"}, struct(a=t.LongType()), "null in 'a', the only column.*blank line"),
        ({"format": "text"}, struct(a=t.LongType()), "one string column .* found a bigint"),
        ({"format": "text"}, struct(a=t.StringType(), b=t.StringType()), "found a string, b string"),
        ({}, struct(a=t.DayTimeIntervalType()), "'a' has the type interval .*cast it to string"),
        ({}, struct(a=t.ArrayType(t.VariantType())), "'a' has the type array<variant>, .*cannot hold variant"),
        ({"format": "orc"}, struct(a=struct(x=t.MapType(t.StringType(), t.NullType()))), "cannot hold void"),
        ({"format": "json"}, struct(a=t.CalendarIntervalType()), "'a' has the type interval"),
        ({"partition_by": ["d"]}, struct(a=t.LongType()), "partition_by names d, but the rows have a"),
        ({"required": ["d"]}, struct(a=t.LongType()), "required names d"),
        ({"partition_by": ["a"]}, struct(a=t.LongType()), "nothing is left to write"),
        ({"partition_by": ["a"]}, struct(a=NESTED, b=t.LongType()), "'a' .*partition folder"),
        ({}, struct(a=t.LongType(), A=t.LongType()), "only by case.* A, a"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_when_the_job_starts(
    settings: dict[str, Any], schema: t.StructType, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        Files(tmp_path, **settings).columns(schema, f.col)


def test_rows_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    schema = struct(a=t.LongType(), b=t.ArrayType(struct(c=t.BinaryType())), d=t.TimestampNTZType(), e=t.VarcharType(3))
    assert Files(tmp_path).columns(schema, f.col) is None
    assert Files(tmp_path, format="orc").columns(schema, f.col) is None
    assert Files(tmp_path, format="text").columns(struct(any=t.StringType()), f.col) is None


def test_the_header_is_quoted_like_the_rows(tmp_path: Path) -> None:
    names = ["a", "b,c", 'd"e', "f;g"]
    assert header_line(names, Files(tmp_path, "csv").settings) == 'a,"b,c","d""e",f;g'
    assert header_line(names, Files(tmp_path, "csv", options={"sep": ";"}).settings) == 'a;b,c;"d""e";"f;g"'
