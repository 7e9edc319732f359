"""Sources as declared: what is refused and when, how rows are cut, what travels where. No Spark is started."""

from __future__ import annotations

import datetime
import os
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from tallystick.errors import ConfigError
from tallystick.records import Mode
from tallystick.sources import Collection, Files
from tallystick.sources.offset_reader import OffsetReader, Part, Rows, data_source
from tallystick.spark import faststart
from tallystick.spark.file_manager import FILE_MANAGER
from tallystick.spark.session import JARS, JAVA_OPTIONS, settings_for

ID_APP = StructType([StructField("id", LongType()), StructField("app", StringType())])
ROWS = [{"id": number, "app": f"app{number % 3}"} for number in range(100)]


def reader(length: int = 100, **settings: Any) -> OffsetReader:
    batch = pa.RecordBatch.from_pylist(ROWS[:length])
    values: dict[str, Any] = {"per_epoch": None, "per_second": None, "partitions": 2, **settings}
    return OffsetReader(Rows(length, ID_APP, batch, None, **values))


def read_ids(of: OffsetReader, start: int, end: int) -> list[list[int]]:
    parts = of.partitions({"offset": start}, {"offset": end})
    return [[number for batch in of.read(part) for number in batch.column("id").to_pylist()] for part in parts]


# --- Collection: declarations


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Collection([]), "no rows to tell the columns from"),
        (lambda: Collection([(1, "a")]), "only dictionaries name their columns"),
        (lambda: Collection([{"id": 1}, {"id": "one"}]), "column 'id' holds values of different types"),
        (lambda: Collection([{"id": None}]), "column 'id' is empty in every row"),
        (lambda: Collection([{"id": 1, "x": 2}], schema=ID_APP), r"row 0 has \['x'\]"),
        (lambda: Collection([(1, "a"), (2,)], schema=ID_APP), "row 1 has 1 values, the schema has 2"),
        (lambda: Collection(["ab"], schema=ID_APP), "row 0 is a str"),
        (lambda: Collection([(1, "a"), (2, 7)], schema=ID_APP), "row 1: app = 7 is no string"),
        (lambda: Collection(ROWS, per_epoch=0), "per_epoch is 0, needed a number above 0"),
        (lambda: Collection(ROWS, per_epoch=1.5), "per_epoch is 1.5, needed a whole number"),  # type: ignore[arg-type]
        (lambda: Collection(ROWS, per_second=-1), "per_second is -1"),
        (lambda: Collection(ROWS, partitions=0), "partitions is 0"),
        (lambda: Collection(ROWS, name="a b"), "letters, digits and underscores"),
        (lambda: Collection(ROWS, length=5), "length=5 is for a function"),
        (lambda: Collection(lambda offset: (offset,), schema=ID_APP), "needs length="),
        (lambda: Collection(lambda offset: (offset,), length=3), "needs schema="),
        (
            lambda: Collection([{"id": None}], schema=StructType([StructField("id", LongType(), nullable=False)])),
            "column 'id' must not be empty, but 1 rows",
        ),
    ],
)
def test_a_wrong_collection_is_refused_when_it_is_declared(wrong: Callable[[], Collection], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong()


def test_columns_of_all_rows_are_inferred_in_the_order_seen() -> None:
    found = Collection([{"id": 1}, {"app": "a", "id": 2}]).schema
    assert found == ID_APP


def test_datetimes_with_and_without_zone_have_different_types() -> None:
    now = datetime.datetime(2024, 1, 1)
    found = Collection([{"here": now, "there": now.replace(tzinfo=datetime.timezone.utc)}]).schema
    assert isinstance(found, StructType)
    assert [field.dataType for field in found] == [TimestampNTZType(), TimestampType()]


def test_no_rows_are_fine_with_a_schema() -> None:
    assert Collection([], schema=ID_APP).length == 0


def test_later_changes_of_the_list_do_not_reach_the_collection() -> None:
    mine = list(ROWS)
    declared = Collection(mine)
    mine.clear()
    assert declared.length == 100


def test_a_collection_says_what_it_promises() -> None:
    assert Collection.facts.guarantee is Mode.EXACTLY_ONCE
    assert Collection(ROWS, name="visits").name == "visits"


@pytest.mark.parametrize("offset", ['{"offset": 1000}', {"offset": 1000}])
def test_offsets_of_a_collection_in_words(offset: Any) -> None:
    assert Collection(ROWS).describe_offset(offset) == "1000"


def test_foreign_offsets_are_shown_as_they_stand() -> None:
    assert Collection(ROWS).describe_offset('{"logOffset":3}') == '{"logOffset": 3}'


# --- Collection: epochs and partitions


@given(st.integers(0, 100).flatmap(lambda start: st.tuples(st.just(start), st.integers(start, 100))), st.integers(1, 7))
def test_any_range_gives_its_rows_in_order_and_the_same_cuts_again(span: tuple[int, int], partitions: int) -> None:
    start, end = span
    cuts = read_ids(reader(partitions=partitions), start, end)
    assert [number for part in cuts for number in part] == list(range(start, end))
    assert len(cuts) == min(partitions, end - start)
    assert cuts == read_ids(reader(partitions=partitions), start, end)


def test_every_epoch_has_exactly_per_epoch_rows_but_the_last() -> None:
    of = reader(per_epoch=30)
    ends = [0]
    while ends[-1] < 100:
        ends.append(of.latestOffset({"offset": ends[-1]}, of.getDefaultReadLimit())["offset"])
    assert ends == [0, 30, 60, 90, 100]
    assert of.latestOffset({"offset": 100}, of.getDefaultReadLimit()) == {"offset": 100}


def test_without_per_epoch_all_rows_are_one_epoch() -> None:
    of = reader()
    assert isinstance(of.getDefaultReadLimit(), ReadAllAvailable)
    assert of.latestOffset({"offset": 7}, of.getDefaultReadLimit()) == {"offset": 100}


def test_per_second_releases_by_the_clock_from_where_the_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("tallystick.sources.offset_reader.time.monotonic", lambda: clock[0])
    of = reader(per_second=10)
    assert of.latestOffset({"offset": 40}, ReadAllAvailable()) == {"offset": 41}
    assert of.latestOffset({"offset": 41}, ReadAllAvailable()) == {"offset": 41}
    clock[0] += 1.25
    assert of.latestOffset({"offset": 41}, ReadAllAvailable()) == {"offset": 53}
    clock[0] += 1000
    assert of.latestOffset({"offset": 53}, ReadAllAvailable()) == {"offset": 100}


def test_per_second_with_per_epoch_releases_whole_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("tallystick.sources.offset_reader.time.monotonic", lambda: clock[0])
    of = reader(per_second=10, per_epoch=30)
    seen: list[int] = []
    for _ in range(12):
        start = seen[-1] if seen else 0
        seen.append(of.latestOffset({"offset": start}, ReadMaxRows(30))["offset"])
        clock[0] += 1
    assert seen == [30, 30, 30, 60, 60, 60, 90, 90, 90, 100, 100, 100]


def test_a_run_that_ends_does_not_wait_for_the_clock() -> None:
    of = reader(per_second=0.001, per_epoch=30)
    of.prepareForTriggerAvailableNow()
    assert of.latestOffset({"offset": 0}, ReadMaxRows(30)) == {"offset": 30}


def test_a_collection_that_lost_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="has read 60 rows, but the collection holds 50"):
        reader(50).latestOffset({"offset": 60}, ReadAllAvailable())
    with pytest.raises(ConfigError, match="read row 59 again, but the collection holds 50"):
        reader(50).partitions({"offset": 40}, {"offset": 60})


def test_a_function_that_gives_a_wrong_row_is_told_its_offset() -> None:
    rows = Rows(9, ID_APP, None, lambda offset: (offset, None if offset < 5 else 7), None, None, 2)
    with pytest.raises(ConfigError, match="row 5: app = 7 is no string"):
        list(OffsetReader(rows).read(Part(3, 9, None)))


# --- Collection: what travels


def as_spark_pickles(value: object) -> bytes:
    return bytes(CloudPickleSerializer().dumps(value))  # type: ignore[no-untyped-call]


def test_tasks_get_their_own_rows_and_not_the_collection() -> None:
    wide = pa.RecordBatch.from_pylist([{"id": number, "app": "x" * 1000} for number in range(1000)])
    source = data_source("wide", Rows(1000, ID_APP, wide, None, None, None, 10))({})
    as_spark_keeps_it = as_spark_pickles(source)
    made = source.streamReader(ID_APP)
    part = made.partitions({"offset": 0}, {"offset": 1000})[0]
    travels = as_spark_pickles((source, made))
    assert len(as_spark_keeps_it) > 1_000_000
    assert len(travels) < 10_000
    assert len(pickle.dumps(part)) < 120_000
    shell, arrived = pickle.loads(travels)
    assert shell.name() == "wide"
    assert sum(batch.num_rows for batch in arrived.read(part)) == 100


# --- Files


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Files("", "csv", "id long"), "the path is empty"),
        (lambda: Files("data/*", "csv", "id long"), "is a pattern, needed a folder"),
        (lambda: Files("data", "xls", "id long"), "unknown format 'xls', needed one of csv, json, orc, parquet, text"),
        (lambda: Files("data", "csv"), "csv needs schema="),
        (lambda: Files("data", "csv", "id long", max_files_per_epoch=0), "max_files_per_epoch is 0"),
        (lambda: Files("data", "csv", "id long", options={"headr": "true"}), "csv has no option 'headr'"),
        (lambda: Files("data", "parquet", "id long", options={"sep": ";"}), "parquet has no option 'sep'"),
        (lambda: Files("data", "csv", "id long", options={"cleansource": "delete"}), "cleansource is refused"),
        (lambda: Files("data", "csv", "id long", options={"mode": "DROPMALFORMED"}), "drops lines"),
    ],
)
def test_a_wrong_files_source_is_refused_when_it_is_declared(wrong: Callable[[], Files], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong()


def test_files_are_declared_once() -> None:
    declared = Files(Path("data"), "text")
    assert declared.name == "files:data"
    with pytest.raises(FrozenInstanceError):
        declared.format = "csv"  # type: ignore[misc]
    with pytest.raises(TypeError):
        declared.options["wholetext"] = "true"  # type: ignore[index]


def test_offsets_of_files_in_words() -> None:
    assert Files("data", "text").describe_offset('{"logOffset":3}') == "log 3"


# --- Session settings


def test_settings_of_the_caller_win_and_options_of_the_jvm_are_joined() -> None:
    mine = {"spark.ui.enabled": "true", JAVA_OPTIONS: "-Dmine=1"}
    settings = settings_for("local[2]", mine, fast_start=True, quiet=True)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.sql.adaptive.enabled"] == "false"
    assert "log4j2.configurationFile=file:" in settings[JAVA_OPTIONS]
    assert faststart.LIGHT in settings[JAVA_OPTIONS]
    assert settings[JAVA_OPTIONS].endswith("-Dmine=1")


def test_a_cluster_is_not_bound_to_this_machine() -> None:
    settings = settings_for("spark://master:7077", {}, fast_start=False, quiet=False)
    assert not {"spark.driver.host", FILE_MANAGER, JAVA_OPTIONS, JARS} & settings.keys()


# --- Fast start


def test_without_an_archive_the_options_do_without(tmp_path: Path) -> None:
    assert faststart.jvm_options(tmp_path) == faststart.LIGHT


def fake_archive(folder: Path, size: int, named_size: int) -> Path:
    java = faststart._java()
    assert java is not None
    folder.mkdir(exist_ok=True)
    archive = folder / f"spark-{faststart._key(java)}-{named_size}.jsa"
    archive.write_bytes(b"x" * size)
    return archive


def test_an_archive_is_used_when_it_is_there(tmp_path: Path) -> None:
    archive = fake_archive(tmp_path / "with space", 10, 10)
    assert f'"-XX:SharedArchiveFile={archive}"' in faststart.jvm_options(tmp_path / "with space")


def test_a_truncated_archive_would_kill_the_jvm_and_is_not_used(tmp_path: Path) -> None:
    fake_archive(tmp_path, 9, 10)
    assert faststart.jvm_options(tmp_path) == faststart.LIGHT


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(faststart.CACHE, str(tmp_path))
    assert faststart.default_cache_dir() == tmp_path
    monkeypatch.delenv(faststart.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    assert faststart.default_cache_dir() == tmp_path / "tallystick"


def test_another_java_needs_another_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = fake_archive(tmp_path, 10, 10)
    assert faststart.archive_path(tmp_path) == archive
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch()
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "jdk"))
    assert faststart.archive_path(tmp_path) is None
