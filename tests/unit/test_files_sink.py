"""The file sink: settings, names, plain readers, rolling, partitions, bounded memory."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from file_slices import made, prepare, published, rows

from tallystick import sinks
from tallystick.errors import ConfigError, RowRefusedError
from tallystick.records import Outcome
from tallystick.sinks import Files, SliceContext
from tallystick.testing.sinks import JOB, context


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"format": "avro"}, "unknown file format 'avro': needed one of csv, json, orc, parquet, text"),
        ({"compression": "zip"}, "parquet files cannot be compressed with 'zip': needed one of none, snappy"),
        ({"format": "json", "compression": "snappy"}, "json files cannot be compressed with 'snappy'"),
        ({"partition_by": "day"}, r"partition_by needs a list of column names such as \['day'\], found 'day'"),
        ({"partition_by": ["a", "a"]}, "partition_by names a column twice"),
        ({"required": [1]}, "required needs a list"),
        ({"roll_bytes": 0}, "roll_bytes needs a number of bytes above 0.* found 0"),
        ({"roll_bytes": True}, "roll_bytes .* found True"),
        ({"row_group_bytes": "1MB"}, "row_group_bytes .* found '1MB'"),
        ({"roll_age": 1.5}, "not a duration: 1.5 of type float"),
        ({"roll_age": "0s"}, "roll_age needs a duration above zero"),
        ({"header": True}, "only csv files have a header"),
        ({"format": "csv", "options": {"lineSep": "x"}}, "csv files have no option lineSep: needed one of"),
        ({"options": {"a": "b"}}, "parquet files have no option a: they take none"),
        ({"path": ""}, "is empty"),
        ({"path": "s3a://bucket/x"}, "found 's3a://bucket/x'"),
        ({"path": "file://other/x"}, "names the host 'other'"),
    ],
)
def test_wrong_settings_are_refused_when_declared(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Files(**{"path": "x", **settings})


def test_paths_are_absolute_and_may_be_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Files("out").path == tmp_path / "out"
    assert Files("file:///data/a%20b").path == Path("/data/a b")
    assert Files(tmp_path).target == f"file:{tmp_path}"


def test_exports_are_sorted() -> None:
    assert sinks.__all__ == sorted(sinks.__all__, key=lambda name: (not name.isupper(), name)), "as ruff sorts them"


def test_names_sort_by_epoch_and_keep_jobs_and_sinks_apart(tmp_path: Path) -> None:
    sink = made(tmp_path)
    first = context(epoch=9)
    other = SliceContext(JOB, context(epoch=10).attempt, "another sink", 0, 7)
    for where in (first, other, context(epoch=10, job="other job")):
        assert sink.commit(prepare(sink, rows(0, 1), where=where)) is Outcome.COMMITTED
    names = sorted(file.name for file in tmp_path.glob("*.parquet"))
    assert [name.split("-")[1] for name in names] == ["000000000009", "000000000010", "000000000010"]
    assert all(re.fullmatch(r"part-\d{12}-\d{6}-\d{7}-\d{9}-\d{4}-[0-9a-f]{12}\.parquet", name) for name in names)


def test_what_is_staged_matches_no_readers_pattern(tmp_path: Path) -> None:
    for format_ in ("parquet", "json", "csv", "orc", "text"):
        sink = made(tmp_path / format_, format=format_)
        prepare(sink, pa.RecordBatch.from_pydict({"value": ["x"]}))
        extensions = {".parquet", ".json", ".csv", ".orc", ".txt"}
        assert {file.suffix for file in sink.path.rglob("*") if file.is_file()} == {".staged", ""}
        assert not [file for file in sink.path.rglob("*") if file.suffix in extensions]


def test_plain_tools_read_while_another_transaction_is_prepared(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    assert sink.commit(prepare(sink, rows(0, 10, kinds=3))) is Outcome.COMMITTED
    prepare(sink, rows(100, 10, kinds=3), where=context(epoch=1))
    half = sink.begin_transaction(context(epoch=2))
    sink.write(half, rows(200, 10, kinds=3))
    pattern = f"{tmp_path}/**/*.parquet"
    query = f"select id, kind from read_parquet('{pattern}', hive_partitioning=true) order by id"
    by_duckdb = duckdb.execute(query).fetchall()
    by_pandas = pd.read_parquet(tmp_path).sort_values("id")
    by_arrow = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("id")
    expected = [(n, f"k{n % 3}") for n in range(10)]
    assert by_duckdb == expected
    assert list(zip(by_pandas["id"], by_pandas["kind"], strict=True)) == expected
    assert list(zip(*by_arrow.select(["id", "kind"]).to_pydict().values(), strict=True)) == expected
    sink.rollback(half)


def test_files_roll_by_bytes(tmp_path: Path) -> None:
    sink = made(tmp_path, roll_bytes=4000, compression="none")
    committable = prepare(sink, *(rows(n * 500, 500) for n in range(6)))
    assert len(committable["files"]) > 2
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(3000))


@pytest.mark.parametrize(("age", "files"), [("1ms", 3), ("1h", 1)])
def test_files_roll_by_age_at_the_latest_with_the_next_batch(age: str, files: int, tmp_path: Path) -> None:
    sink = made(tmp_path, roll_age=age)
    transaction = sink.begin_transaction(context())
    for number in range(3):
        sink.write(transaction, rows(number, 1))
        threading.Event().wait(0.005)
    committable = sink.pre_commit(transaction)
    assert len(committable["files"]) == files
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == [0, 1, 2]


def open_files(folder: Path) -> int:
    """Of this process, below the folder: what threads of other tests' clients hold open meanwhile does not count."""
    handles = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return sum(handle.startswith(str(folder)) for handle in handles)


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_many_partitions_keep_few_files_open(format_: str, tmp_path: Path) -> None:
    sink = made(tmp_path, format=format_, partition_by=["kind"])
    transaction = sink.begin_transaction(context())
    for number in range(2):
        sink.write(transaction, rows(number * 300, 300, kinds=300))
        assert open_files(tmp_path) <= sink.settings.spec.open_files_max
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    assert open_files(tmp_path) == 0
    table = ds.dataset(tmp_path, format=format_, partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == list(range(600))


def test_all_partitions_together_keep_a_bounded_buffer(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"], row_group_bytes=10_000)
    transaction = sink.begin_transaction(context())
    for number in range(50):
        sink.write(transaction, rows(number * 1000, 1000, kinds=20))
        assert sum(writer.buffered_bytes for writer, _ in transaction._open.values()) <= 20_000
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(50_000))


def test_a_null_in_a_required_column_is_refused(tmp_path: Path) -> None:
    sink = made(tmp_path, required=("id",))
    transaction = sink.begin_transaction(context())
    with pytest.raises(RowRefusedError, match="null in 'id'") as error:
        sink.write(transaction, pa.RecordBatch.from_pydict({"id": [1, None]}))
    assert error.value.details == {"column": "id"}
    sink.rollback(transaction)
