"""Spark's offset log: read whole, told apart from anything else, and hashed over the offsets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import CheckpointError
from tallystick.records import SourceOffsets
from tallystick.spark.offsets import local_path, parse_offsets, read_offsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def log(*offsets: str, metadata: str = METADATA, version: str = "v1") -> str:
    return "\n".join([version, metadata, *offsets])


def test_one_source() -> None:
    assert parse_offsets(log('{"offset":5}'), "log").offsets == ({"offset": 5},)


def test_several_sources_in_order() -> None:
    found = parse_offsets(log('{"topic":{"0":12,"1":7}}', "-", '{"logOffset":3}', "42"), "log")
    assert found.offsets == ({"topic": {"0": 12, "1": 7}}, None, {"logOffset": 3}, 42)


def test_an_offset_that_is_no_json_is_shown_as_it_is() -> None:
    assert parse_offsets(log("shard-7/00042"), "log").offsets == ("shard-7/00042",)


def test_no_source_at_all() -> None:
    assert parse_offsets(log(), "log").offsets == ()


def test_an_end_of_line_at_the_end_is_no_source() -> None:
    assert parse_offsets(log('{"offset":5}') + "\n", "log") == parse_offsets(log('{"offset":5}'), "log")


def test_characters_that_only_look_like_the_end_of_a_line() -> None:
    """A file name may hold them; Spark's log ends its lines with one character only."""
    offset = '{"path":"a\u2028b\x85c"}'
    assert parse_offsets(log(offset), "log").offsets == ({"path": "a\u2028b\x85c"},)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1)
lines = st.lists(texts, max_size=4)


@given(lines, lines)
def test_the_digest_is_that_of_the_offsets(one: list[str], other: list[str]) -> None:
    first, second = parse_offsets(log(*one), "log"), parse_offsets(log(*other), "log")
    assert (first.digest == second.digest) == (one == other)
    assert first.digest


@given(texts)
def test_the_digest_does_not_change_with_the_metadata(metadata: str) -> None:
    """Spark writes the time of the start into it: a repeated epoch would never look the same."""
    assert parse_offsets(log("1", metadata=metadata), "log") == parse_offsets(log("1"), "log")


def test_the_digest_changes_with_the_order_of_the_sources() -> None:
    assert parse_offsets(log("1", "2"), "log").digest != parse_offsets(log("2", "1"), "log").digest


@pytest.mark.parametrize("text", ["", "\n", "v1", "v1\n", "{}", "x1\n{}", "version\n{}\n5", "\x00" * 100, "1\n{}\n{}"])
def test_what_is_no_offset_log(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"offsets/3 is no offset log of Spark.*needed 'v1'"):
        parse_offsets(text, "/ck/offsets/3")


class TestReading:
    @staticmethod
    def read(checkpoint: str) -> SourceOffsets:
        nobody: Any = None  # a local log needs no Spark
        return read_offsets(nobody, checkpoint, 3)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.mark.parametrize("name", ["plain", "with space", "50%20off", "a#b", "a?b=c", "ä:ö"])
    @pytest.mark.parametrize("prefix", ["", "file:", "file://", "FILE:"])
    def test_where_spark_writes_it(self, folder: Path, name: str, prefix: str) -> None:
        """As in Spark, a URI is taken as it stands: nothing in it is decoded or cut off."""
        (folder / name / "offsets").mkdir(parents=True)
        (folder / name / "offsets" / "3").write_text(log('{"app":"é"}'), encoding="utf-8")
        assert self.read(f"{prefix}{folder / name}").offsets == ({"app": "é"},)

    def test_a_log_that_is_not_there(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match=r"offsets/3 cannot be read.*moved or deleted"):
            self.read(str(folder))

    def test_a_log_that_is_empty(self, folder: Path) -> None:
        (folder / "offsets").mkdir()
        (folder / "offsets" / "3").write_bytes(b"")
        with pytest.raises(CheckpointError, match="offsets/3 is no offset log"):
            self.read(str(folder))

    def test_a_log_that_is_no_text(self, folder: Path) -> None:
        (folder / "offsets").mkdir()
        (folder / "offsets" / "3").write_bytes(b"v1\n\xff\xfe\n{}")
        with pytest.raises(CheckpointError, match="offsets/3 is no offset log of Spark: it is no text"):
            self.read(str(folder))


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("/a/x:y", "/a/x:y"),
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
        ("abfs://box@host/a", None),
    ],
)
def test_which_locations_are_local(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))
