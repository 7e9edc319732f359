"""Savepoints: which files are needed, what is verified, what is refused; and what may change before a restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_runner import Tally, commit, finish, new_checkpoint, vote
from tallystick.errors import CheckpointError, JournalCorruptError, NewerCheckpointError
from tallystick.journal import Journal, audit_lines
from tallystick.journal.codec import encode
from tallystick.journal.posix import PosixStore
from tallystick.records import Json
from tallystick.spark.changes import changes
from tallystick.spark.folders import Folder, LocalFolder
from tallystick.spark.savepoint import MANIFEST, create, needed, read_manifest, restore


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Five finished epochs, and a sixth that is open."""
    folder = tmp_path / "checkpoint"
    journal = new_checkpoint(folder)
    for epoch in range(6):
        journal.put(commit(epoch, 1, vote(10)))
    finish(folder, *range(5))
    (folder / "offsets" / "5").write_text("v1\n{}\n{}")
    (folder / "metadata").write_text("{}")
    return folder


class TestNeeded:
    def test_logs_of_the_epoch_and_the_one_before(self) -> None:
        tree = [f"{log}/{epoch}" for log in ("offsets", "commits") for epoch in range(6)]
        assert needed([*tree, "metadata"], 4, []) == ["commits/3", "commits/4", "metadata", "offsets/3", "offsets/4"]

    def test_state_from_its_last_snapshot_on(self) -> None:
        folder = [f"state/0/0/{version}.delta" for version in range(1, 8)]
        found = needed([*folder, "state/0/0/3.snapshot", "state/0/0/6.snapshot", "state/0/0/_metadata/schema"], 4, [])
        assert found == [
            "state/0/0/3.snapshot",
            "state/0/0/4.delta",
            "state/0/0/5.delta",
            "state/0/0/_metadata/schema",
        ]

    def test_stores_of_a_join_have_snapshots_of_their_own(self) -> None:
        left = ["state/0/0/left-keyToNumValues/1.delta", "state/0/0/left-keyToNumValues/1.snapshot"]
        right = ["state/0/0/right-keyToNumValues/1.delta", "state/0/0/right-keyToNumValues/2.delta"]
        assert needed([*left, *right], 1, []) == [left[1], *right]

    def test_rocksdb_keeps_what_its_snapshots_share(self) -> None:
        tree = ["state/0/0/1.changelog", "state/0/0/1.zip", "state/0/0/2.changelog", "state/0/0/SSTs/1-a.sst"]
        assert needed(tree, 1, []) == ["state/0/0/1.zip", "state/0/0/2.changelog", "state/0/0/SSTs/1-a.sst"]

    def test_a_file_source_forgets_what_it_saw_later(self) -> None:
        """Otherwise these files would count as read."""
        tree = ["sources/0/0", "sources/0/1", "sources/0/2", "sources/1/0", "sources/1/9"]
        assert needed(tree, 4, [{"logOffset": 1}, {"views": {"0": 7}}]) == [
            "sources/0/0",
            "sources/0/1",
            "sources/1/0",
            "sources/1/9",
        ]

    def test_of_the_journal_what_is_settled(self) -> None:
        keys = ["attempts/000000000004.0000001.json", "attempts/000000000005.0000001.json", "job.json", "lock"]
        keys += ["audit/000000000000-000000000099.jsonl", "generations/0000001.json", "terms/0000001.json"]
        keys += ["beats/0000001.000000000009.json", "notes/000000000005.0000001.abandoned.json"]
        assert needed([f"tallystick/{key}" for key in keys], 4, []) == [
            "tallystick/attempts/000000000004.0000001.json",
            "tallystick/audit/000000000000-000000000099.jsonl",
            "tallystick/generations/0000001.json",
        ]


class TestCreateAndRestore:
    def test_there_and_back(self, checkpoint: Path, tmp_path: Path) -> None:
        manifest = create(checkpoint, tmp_path / "savepoint")
        assert (manifest["job"], manifest["epoch"]) == ("pv", 4)
        restore(tmp_path / "savepoint", tmp_path / "again")
        assert sorted(path.name for path in (tmp_path / "again" / "commits").iterdir()) == ["3", "4"]
        restored = Journal(PosixStore(tmp_path / "again" / "tallystick"))
        owner, before = restored.identity(), Journal(PosixStore(checkpoint / "tallystick")).identity()
        assert owner is not None
        assert before is not None
        assert owner.job == "pv"
        assert owner.id != before.id, "names of transactions must never meet those of the original"
        assert [line["epoch"] for line in audit_lines(restored)] == [0, 1, 2, 3, 4]
        assert not list(tmp_path.glob("*.partial*"))

    def test_for_a_job_of_another_name(self, checkpoint: Path, tmp_path: Path) -> None:
        create(checkpoint, tmp_path / "savepoint")
        restore(tmp_path / "savepoint", tmp_path / "again", "other")
        owner = Journal(PosixStore(tmp_path / "again" / "tallystick")).identity()
        assert owner is not None
        assert owner.job == "other"

    def test_a_file_that_was_changed_is_named(self, checkpoint: Path, tmp_path: Path) -> None:
        create(checkpoint, tmp_path / "savepoint")
        (tmp_path / "savepoint" / "offsets" / "4").write_text("v1\n{}\n{}x")
        with pytest.raises(CheckpointError, match=r"was damaged: offsets/4 has \d+ bytes and SHA-256"):
            restore(tmp_path / "savepoint", tmp_path / "again")
        assert not (tmp_path / "again").exists()

    def test_a_file_that_is_gone_is_named(self, checkpoint: Path, tmp_path: Path) -> None:
        create(checkpoint, tmp_path / "savepoint")
        (tmp_path / "savepoint" / "metadata").unlink()
        with pytest.raises(CheckpointError, match="is not whole: metadata cannot be read"):
            restore(tmp_path / "savepoint", tmp_path / "again")

    def test_a_manifest_that_was_changed_is_noticed(self, checkpoint: Path, tmp_path: Path) -> None:
        create(checkpoint, tmp_path / "savepoint")
        manifest = tmp_path / "savepoint" / MANIFEST
        manifest.write_text(manifest.read_text().replace('"epoch": 4', '"epoch": 5'))
        with pytest.raises(JournalCorruptError, match="does not match its checksum"):
            read_manifest(tmp_path / "savepoint")

    def test_newer_versions_are_refused_with_words(self, checkpoint: Path, tmp_path: Path) -> None:
        manifest = create(checkpoint, tmp_path / "savepoint")
        place = tmp_path / "savepoint" / MANIFEST
        place.write_bytes(encode("savepoint", {**manifest, "spark": "99.1.0"}))
        with pytest.raises(NewerCheckpointError, match=r"written with Spark 99\.1\.0, this is Spark 4"):
            read_manifest(tmp_path / "savepoint")
        place.write_text(json.dumps({**json.loads(place.read_text()), "version": 99}))
        with pytest.raises(NewerCheckpointError, match="format 99"):
            read_manifest(tmp_path / "savepoint")

    def test_nothing_is_overwritten(self, checkpoint: Path, tmp_path: Path) -> None:
        (tmp_path / "savepoint").mkdir()
        (tmp_path / "savepoint" / "mine").touch()
        with pytest.raises(CheckpointError, match="is there already and not empty"):
            create(checkpoint, tmp_path / "savepoint")
        with pytest.raises(CheckpointError, match="is there already and not empty"):
            create(checkpoint, checkpoint)

    def test_a_file_that_goes_while_it_is_copied_makes_it_begin_anew(
        self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when Spark cleans up: the next look finds a newer epoch."""
        copy = LocalFolder.copy

        def once(target: LocalFolder, path: str, source: Folder) -> dict[str, Json]:
            monkeypatch.setattr(LocalFolder, "copy", copy)
            finish(checkpoint, 5)
            raise FileNotFoundError(path)

        monkeypatch.setattr(LocalFolder, "copy", once)
        assert create(checkpoint, tmp_path / "savepoint")["epoch"] == 5
        assert not list(tmp_path.glob("*.partial*"))

    def test_a_checkpoint_without_a_finished_epoch(self, tmp_path: Path) -> None:
        new_checkpoint(tmp_path / "checkpoint")
        with pytest.raises(CheckpointError, match="has no finished epoch yet"):
            create(tmp_path / "checkpoint", tmp_path / "savepoint")

    def test_on_the_command_line(self, tally: Tally, checkpoint: Path, tmp_path: Path) -> None:
        made = tally("savepoint", "create", checkpoint, tmp_path / "savepoint", "--json").json
        assert (made["job"], made["epoch"]) == ("pv", 4)
        assert made["bytes"] > 0
        back = tally("savepoint", "restore", tmp_path / "savepoint", tmp_path / "again", "--as", "copy")
        assert back.status == 0, back.err
        assert "goes on after epoch 4" in back.out.replace("\n", " ")
        ran = tally("savepoint", "restore", tmp_path / "nowhere", tmp_path / "third")
        assert ran.status == 1
        assert "is no savepoint" in ran.err
        remote = tally("savepoint", "restore", "abfs://box@host/savepoint", tmp_path / "third")
        assert "is on abfs: needed a path of this machine, hdfs:, or s3:" in remote.err


BEFORE: Json = {"sources": ["views"], "offsets": [{"offset": 1}], "sinks": {"files": "a", "kafka": "b"}}


class TestChanges:
    def test_nothing_changed(self) -> None:
        assert changes(BEFORE, ["views"], {"files": "a", "kafka": "b"}) == []

    def test_sinks_may_change(self) -> None:
        found = changes(BEFORE, ["views"], {"files": "elsewhere", "redis": "c"})
        assert [(change.what, change.allowed) for change in found] == [
            ("sink files goes to elsewhere, was a", True),
            ("sink kafka is gone", True),
            ("sink redis is new", True),
        ]

    def test_another_number_of_sources_is_refused(self) -> None:
        [found] = changes(BEFORE, ["views", "clicks"], {"files": "a", "kafka": "b"})
        assert (found.what, found.allowed) == ("1 sources became 2", False)

    def test_another_name_of_a_source_is_told(self) -> None:
        [found] = changes(BEFORE, ["clicks"], {"files": "a", "kafka": "b"})
        assert found.allowed
        assert "are now called clicks" in found.what
