"""The Delta sink beyond its contract: whole epochs, tokens, rivals, tables that cannot be written to from outside."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from tallystick.errors import ConfigError, MissingExtraError, RowRefusedError, SinkError
from tallystick.records import Attempt, Json, Outcome
from tallystick.sinks import Delta, SliceContext
from tallystick.sinks.base import JobContext
from tallystick.sinks.delta.token import Standing, Token
from tallystick.testing.sinks import JOB


def made(path: Path, **settings: Any) -> Delta:
    DeltaTable.create(str(path), Schema.from_arrow(pa.schema([("id", pa.int64())])), mode="ignore")
    sink = Delta(path, **settings)
    sink.check(JobContext())
    return sink


def where(epoch: int = 0, generation: int = 1, slice_: int = 0, read: str = "offsets") -> SliceContext:
    return SliceContext(JOB, Attempt(epoch, generation), "out", slice_, 7, read=read)


def prepare(sink: Delta, start: int, context: SliceContext) -> Json:
    transaction = sink.begin_transaction(context)
    sink.write(transaction, pa.RecordBatch.from_pydict({"id": pa.array([start, start + 1], pa.int64())}))
    return json.loads(json.dumps(sink.pre_commit(transaction)))


def ids(path: Path, version: int | None = None) -> list[int]:
    return sorted(DeltaTable(str(path), version=version).to_pyarrow_table()["id"].to_pylist())


def test_the_slices_of_an_epoch_appear_in_one_commit(tmp_path: Path) -> None:
    sink = made(tmp_path)
    slices = [prepare(sink, number * 10, where(slice_=number)) for number in range(3)]
    before = DeltaTable(str(tmp_path)).version()
    assert sink.commit_all(slices, recovering=False) == [Outcome.COMMITTED] * 3
    assert DeltaTable(str(tmp_path)).version() == before + 1
    assert ids(tmp_path, before) == []
    assert ids(tmp_path) == [0, 1, 10, 11, 20, 21]


def test_an_epoch_that_was_committed_in_part_is_completed(tmp_path: Path) -> None:
    sink = made(tmp_path)
    slices = [prepare(sink, number * 10, where(slice_=number)) for number in range(3)]
    assert sink.commit(slices[1]) is Outcome.COMMITTED
    assert sink.commit_all(slices, recovering=True) == [
        Outcome.COMMITTED,
        Outcome.ALREADY_COMMITTED,
        Outcome.COMMITTED,
    ]
    assert ids(tmp_path) == [0, 1, 10, 11, 20, 21]


class TestARewoundCheckpoint:
    """Nothing is ever taken for committed because its number is low enough."""

    def test_is_refused_when_the_table_is_ahead(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        sink = made(tmp_path)
        for epoch in range(3):
            assert sink.commit(prepare(sink, epoch * 10, where(epoch))) is Outcome.COMMITTED
        assert sink.commit(prepare(sink, 100, where(1, generation=2))) is Outcome.REFUSED
        assert "is ahead of epoch 1" in caplog.text
        assert "restore the checkpoint that belongs to this table" in caplog.text
        assert ids(tmp_path) == [0, 1, 10, 11, 20, 21]

    def test_is_refused_when_the_last_epoch_reads_other_offsets(self, tmp_path: Path) -> None:
        sink = made(tmp_path)
        assert sink.commit(prepare(sink, 0, where(5, read="0 to 10"))) is Outcome.COMMITTED
        assert sink.commit(prepare(sink, 0, where(5, generation=2, read="0 to 7"))) is Outcome.REFUSED
        assert ids(tmp_path) == [0, 1]

    def test_is_no_matter_when_the_last_epoch_is_the_same(self, tmp_path: Path) -> None:
        sink = made(tmp_path)
        assert sink.commit(prepare(sink, 0, where(5))) is Outcome.COMMITTED
        assert sink.commit(prepare(sink, 0, where(5, generation=2))) is Outcome.ALREADY_COMMITTED
        assert ids(tmp_path) == [0, 1]


def test_tokens_outlive_compaction_vacuum_and_log_checkpoints(tmp_path: Path) -> None:
    sink = made(tmp_path)
    committables = [prepare(sink, epoch * 10, where(epoch)) for epoch in range(3)]
    for committable in committables:
        assert sink.commit(committable) is Outcome.COMMITTED
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    assert not [final for one in committables for _, final in one["files"] if (tmp_path / final).exists()]
    again = Delta(tmp_path)
    assert again.commit(committables[2]) is Outcome.ALREADY_COMMITTED
    assert ids(tmp_path) == [0, 1, 10, 11, 20, 21]


def test_vacuumed_before_it_was_committed_is_expired(tmp_path: Path) -> None:
    """The driver died between moving files into place and the commit, and stayed down for longer than the retention."""
    sink = made(tmp_path)
    committable = prepare(sink, 0, where())
    (staged, final) = committable["files"][0]
    (sink.staging.locate(committable["dir"]) / staged).rename(tmp_path / final)
    DeltaTable(str(tmp_path)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not (tmp_path / final).exists()
    assert sink.recover_and_commit(committable) is Outcome.EXPIRED
    assert sink.commit(prepare(sink, 0, where(generation=2))) is Outcome.COMMITTED
    assert ids(tmp_path) == [0, 1]


def test_the_driver_died_between_moving_files_and_the_commit(tmp_path: Path) -> None:
    sink = made(tmp_path)
    committable = prepare(sink, 0, where())
    (staged, final) = committable["files"][0]
    (sink.staging.locate(committable["dir"]) / staged).rename(tmp_path / final)
    assert ids(tmp_path) == [], "no reader of Delta sees it"
    assert sink.recover_and_commit(committable) is Outcome.COMMITTED
    assert ids(tmp_path) == [0, 1]


def test_two_drivers_commit_the_same_epoch_at_once(tmp_path: Path) -> None:
    """Whoever is second finds that the application ids have moved, looks again, and finds the epoch there."""
    for epoch in range(10):
        slices = [
            prepare(made(tmp_path), epoch * 100 + number * 10, where(epoch, slice_=number)) for number in range(3)
        ]
        start = threading.Barrier(4, timeout=30)

        def commit(me: int, slices: list[Json] = slices, start: threading.Barrier = start) -> list[Outcome]:
            start.wait()
            return Delta(tmp_path).commit_all(slices, recovering=True)

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(commit, range(4)))
        assert all(outcome.confirmed for answer in outcomes for outcome in answer)
    assert ids(tmp_path) == sorted(e * 100 + n * 10 + k for e in range(10) for n in range(3) for k in range(2))


def test_other_writers_of_the_table_are_no_obstacle(tmp_path: Path) -> None:
    """Between every two epochs, and at the same time."""
    sink, stop = made(tmp_path), threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            number = -1 - len(written)
            write_deltalake(str(tmp_path), pa.table({"id": pa.array([number], pa.int64())}), mode="append")
            written.append(number)

    rival = threading.Thread(target=write)
    rival.start()
    try:
        for epoch in range(15):
            committable = prepare(sink, epoch * 10, where(epoch))
            outcome = Outcome.RETRY_LATER
            for _ in range(50):
                if outcome.confirmed:
                    break
                outcome = sink.commit(committable)
            assert outcome.confirmed
    finally:
        stop.set()
        rival.join(60)
    assert written, "the rival never wrote"
    assert ids(tmp_path) == sorted([*written, *(e * 10 + k for e in range(15) for k in range(2))])


class TestPreflight:
    def table(self, path: Path, **settings: Any) -> None:
        schema = Schema.from_arrow(pa.schema([("id", pa.int64()), ("day", pa.date32())]))
        DeltaTable.create(str(path), schema, **settings)

    def test_a_table_that_is_not_there_and_no_rows_to_tell_its_columns(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"there is no Delta table in .*: make it first"):
            Delta(tmp_path / "t").check(JobContext())

    def test_other_partitions(self, tmp_path: Path) -> None:
        self.table(tmp_path, partition_by=["day"])
        with pytest.raises(ConfigError, match=r"partitioned by day, the sink by nothing: say partition_by=\['day'\]"):
            Delta(tmp_path).check(JobContext())

    def test_a_constraint_that_only_deltas_own_writer_checks(self, tmp_path: Path) -> None:
        self.table(tmp_path)
        DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(SinkError, match="has the check positive, which only Delta's own writer makes"):
            Delta(tmp_path).check(JobContext())

    def test_a_feature_that_nobody_knows_here(self, tmp_path: Path) -> None:
        self.table(tmp_path, configuration={"delta.enableInCommitTimestamps": "true"}, raise_if_key_not_exists=False)
        first = next((tmp_path / "_delta_log").glob("*.json"))
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}
        lines = [json.loads(line) for line in first.read_text().splitlines()]
        changed = [{"protocol": protocol} if "protocol" in line else line for line in lines]
        first.write_text("\n".join(json.dumps(line) for line in changed) + "\n")
        with pytest.raises(SinkError, match=r"has the features domainMetadata, rowTracking: files cannot be added"):
            Delta(tmp_path).check(JobContext())

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        sink = Delta(tmp_path / "file" / "t")
        sink._schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
        with pytest.raises(SinkError, match=r"the Delta table .* cannot be (made|read)"):
            sink.check(JobContext())

    def test_a_missing_library_names_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "deltalake", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[delta\]'"):
            Delta(tmp_path).check(JobContext())


def test_a_table_that_is_gone_is_asked_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = made(tmp_path / "t")
    committable = prepare(sink, 0, where())
    (tmp_path / "t").rename(tmp_path / "away")
    assert sink.commit(committable) is Outcome.RETRY_LATER
    assert "is it mounted? asking again later" in caplog.text
    (tmp_path / "away").rename(tmp_path / "t")
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_bad_row_fails_the_slice_and_leaves_nothing(tmp_path: Path) -> None:
    sink = made(tmp_path, required=["id"])
    transaction = sink.begin_transaction(where())
    with pytest.raises(RowRefusedError, match="null in 'id'"):
        sink.write(transaction, pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64())}))
    sink.rollback(transaction)
    assert list(sink.open_transactions(JOB)) == []


class TestToken:
    def test_it_survives_json(self) -> None:
        token = Token.of(where(12, 3, 4))
        assert Token.from_json(json.loads(json.dumps(token.to_json()))) == token
        assert token.epoch == 12
        assert token.app_id == f"tallystick/{JOB}/out/4"

    @pytest.mark.parametrize(
        ("found", "standing"),
        [
            (None, Standing.NEW),
            (where(4), Standing.NEW),
            (where(4, read="others"), Standing.NEW),
            (where(5), Standing.SAME),
            (where(5, generation=1), Standing.SAME),
            (where(5, generation=3), Standing.AHEAD),
            (where(5, read="others"), Standing.AHEAD),
            (where(6), Standing.AHEAD),
        ],
    )
    def test_against_what_the_table_has(self, found: SliceContext | None, standing: Standing) -> None:
        actions = Token.of(found).actions if found is not None else {}
        assert Token.of(where(5, generation=2)).against(actions.get) is standing
