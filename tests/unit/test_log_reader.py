"""A receiver log as Spark reads it, without Spark: limits, cuts, replays, what travels to tasks, what is settled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tallystick.errors import SourceError
from tallystick.receiver import LogReader, LogSettings, ReceiverLog, Record
from tallystick.receiver.disk import Mark
from tallystick.receiver.process import ReceiverSpec
from tallystick.sources.log_reader import LogStreamReader, Records, data_source

SMALL = LogSettings(max_bytes=1 << 20, segment_bytes=300)


def append(folder: Path, numbers: range) -> None:
    with ReceiverLog(folder, SMALL) as log:
        for number in numbers:
            log.append([Record(str(number).encode(), f"id-{number}", attributes={"n": str(number)})])


def reader(folder: Path, **settings: Any) -> LogStreamReader:
    given: dict[str, Any] = {"encoding": "utf-8", "partitions": 2, "per_epoch": None, "spec": None, "driver": 0}
    return LogStreamReader(Records(str(folder), **{**given, **settings}))


def values(of: LogStreamReader, start: Any, end: Any) -> list[list[str]]:
    """Partition by partition, read where a task would, after a trip by pickle."""
    task = pickle.loads(pickle.dumps(of))
    parts = of.partitions(start, end)
    return [[value for batch in task.read(part) for value in batch.column("value").to_pylist()] for part in parts]


def test_records_come_in_epochs_of_the_limit_and_a_replay_is_the_same(tmp_path: Path) -> None:
    append(tmp_path, range(25))
    made = reader(tmp_path, per_epoch=10)
    limit = made.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    start, epochs = made.initialOffset(), []
    while (end := made.latestOffset(start, limit)) != start:
        epochs.append((start, end, values(made, start, end)))
        start = end
    assert [[len(part) for part in parts] for _, _, parts in epochs] == [[5, 5], [5, 5], [2, 3]]
    assert [value for _, _, parts in epochs for part in parts for value in part] == [str(n) for n in range(25)]
    for begin, end, parts in epochs:
        assert values(reader(tmp_path), begin, end) == parts
    assert made.reportLatestOffset() == start


def test_every_column_is_there(tmp_path: Path) -> None:
    append(tmp_path, range(1))
    made = reader(tmp_path, encoding=None)
    [part] = made.partitions(made.initialOffset(), made.latestOffset(made.initialOffset(), ReadAllAvailable()))
    [row] = [row for batch in made.read(part) for row in batch.to_pylist()]
    assert row["received"].tzinfo is not None
    del row["received"]
    assert row == {"value": b"0", "id": "id-0", "attributes": [("n", "0")], "offset": 0}


def test_a_run_that_ends_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    append(tmp_path, range(5))
    made = reader(tmp_path)
    made.prepareForTriggerAvailableNow()
    append(tmp_path, range(5, 9))
    assert made.latestOffset(made.initialOffset(), ReadAllAvailable())["offset"] == 5


def test_what_is_committed_is_settled_and_never_less(tmp_path: Path) -> None:
    append(tmp_path, range(9))
    made = reader(tmp_path)
    made.commit({"log": "", "offset": 7})
    made.commit({"log": "", "offset": 3})
    assert Mark(tmp_path / "settled").read() == 7


def test_a_new_checkpoint_begins_with_the_oldest_record_that_is_there(tmp_path: Path) -> None:
    append(tmp_path, range(40))
    oldest = sorted((tmp_path / "segments").iterdir())[0]
    oldest.unlink()
    first = LogReader(tmp_path).first
    assert first > 0
    assert reader(tmp_path).initialOffset()["offset"] == first


def test_another_log_in_its_place_is_noticed(tmp_path: Path) -> None:
    append(tmp_path / "a", range(3))
    append(tmp_path / "b", range(9))
    read = reader(tmp_path / "a").latestOffset(reader(tmp_path / "a").initialOffset(), ReadAllAvailable())
    with pytest.raises(SourceError, match="it was replaced"):
        reader(tmp_path / "b").latestOffset(read, ReadAllAvailable())


def test_nothing_is_offered_that_is_not_durable(tmp_path: Path) -> None:
    """Written, not synced, not marked: after a power failure something else could stand there."""
    append(tmp_path, range(5))
    Mark(tmp_path / "durable").write(3)
    made = reader(tmp_path)
    assert made.latestOffset(made.initialOffset(), ReadAllAvailable())["offset"] == 3


def test_passwords_do_not_travel_to_tasks(tmp_path: Path) -> None:
    append(tmp_path, range(1))
    spec = ReceiverSpec(str(tmp_path), {"kind": "rabbitmq", "url": "amqp://reader:hunter2@broker"})
    source = data_source("received", Records(str(tmp_path), None, 1, None, spec, 0))({})
    made = source.streamReader(source.schema())
    serializer: Any = CloudPickleSerializer()
    assert b"hunter2" not in serializer.dumps(made)
    assert b"hunter2" not in serializer.dumps(source)
