"""Files that come as files do: renamed in, written in place, cut, deleted before they were read."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import tallystick as ts
from tallystick.journal.posix import PosixStore
from tallystick.records import SourceOffsets
from tallystick.sources import Files
from tallystick.spark.input_files import missing_files

pytestmark = pytest.mark.spark


def run(spark: SparkSession, folder: Path) -> list[int]:
    """One run over what is there; every id that was published so far."""
    source = Files(folder / "in", "json", "id long")
    out = folder / "out"
    writer = ts.write_stream(source.load(spark), ts.sinks.Files(out, format="json"), checkpoint=folder / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    lines = [line for path in out.glob("*.json") for line in path.read_text().splitlines()]
    return sorted(int(line.removeprefix('{"id":').removesuffix("}")) for line in lines)


def test_hidden_until_renamed_cut_is_an_error_and_so_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """One story, because starting queries takes longer than telling it.

    Spark by itself passes over a file that is gone, although an epoch has it in its log.
    """
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n')
    (folder / ".2.json.tmp").write_text('{"id": 2}\n{"id"')  # still being written
    assert run(spark, tmp_path) == [1]
    (folder / ".2.json.tmp").write_text('{"id": 2}\n{"id": 3}\n')
    (folder / ".2.json.tmp").rename(folder / "2.json")
    assert run(spark, tmp_path) == [1, 2, 3]

    (folder / "3.json").write_text('{"id": 4}\n{"id"')  # written in place, and read too early
    with pytest.raises(StreamingQueryException, match=r"MALFORMED_RECORD|FAILFAST|Malformed"):
        run(spark, tmp_path)
    (folder / "3.json").write_text('{"id": 4}\n{"id": 5}\n')  # its writer has come to its end
    assert run(spark, tmp_path) == [1, 2, 3, 4, 5]

    (folder / "4.json").write_text('{"id": 6}\n{"id"')
    with pytest.raises(StreamingQueryException, match=r"MALFORMED_RECORD|FAILFAST|Malformed"):
        run(spark, tmp_path)
    (folder / "4.json").rename(tmp_path / "kept")  # an epoch has it in its log, and it is gone
    with pytest.raises(StreamingQueryException, match=r"1 of the files that it has to read are gone, .*/in/4.json"):
        run(spark, tmp_path)
    (tmp_path / "kept").rename(folder / "4.json")
    (folder / "4.json").write_text('{"id": 6}\n')
    assert run(spark, tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_file_is_looked_for_in_the_log_of_every_epoch_whatever_spark_has_compacted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark writes every tenth entry of its log as one with all before it. A name may have odd letters."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(1, 13):
        (folder / f"{number:02d} ü%41.json").write_text(f'{{"id": {number}}}\n')
    logs, offsets = PosixStore(tmp_path / "checkpoint" / "sources"), SourceOffsets
    source = Files(folder, "json", "id long", max_files_per_epoch=1)
    writer = ts.write_stream(source.load(spark), ts.sinks.Files(tmp_path / "out"), checkpoint=tmp_path / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert "9.compact" in logs.list("0")
    for epoch in range(12):
        read = offsets("", ({"logOffset": epoch},))
        assert missing_files(spark, str(tmp_path / "checkpoint"), epoch, read) == [], epoch
    for path in folder.glob("*.json"):
        path.unlink()
    gone = []
    for epoch in range(12):
        [one] = missing_files(spark, str(tmp_path / "checkpoint"), epoch, offsets("", ({"logOffset": epoch},)))
        gone.append(Path(unquote(one)).name)
    assert sorted(gone) == [f"{number:02d} ü%41.json" for number in range(1, 13)]
