"""``tallystick checkpoints`` on checkpoints without state: what needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import Tally, abort, finish, new_checkpoint, vote
from tallystick.cli.checkpoints import cut_lines
from tallystick.cli.cut import by_partition, keyed, sources
from tallystick.journal import Journal, audit_lines
from tallystick.records import Attempt, Decision, Json, Record, SourceOffsets


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return new_checkpoint(tmp_path)


def timed(epoch: int, before: Json | None = None) -> Record:
    facts = {"at": 1_700_000_000.0 + epoch, "until_decision_s": 0.25, "settle_s": 0.05, "prepare_s": 0.2}
    read = SourceOffsets("d", ({"views": {"0": 10 * epoch}},))
    told = {"before": before} if before else {}
    return Record(Attempt(epoch, 1), Decision.COMMIT, votes=(vote(3),), read=read, facts={**facts, **told})


class TestList:
    def test_every_status_and_its_facts(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        journal.put(timed(0))
        journal.put(timed(1, before={"epoch": 0, "decide_s": 0.01, "commit_s": 0.3, "total_s": 0.6}))
        journal.put(abort(2, 1))
        finish(tmp_path, 0)
        (tmp_path / "offsets" / "1").write_text("v1\n{}\n{}")
        first, second, third = tally("checkpoints", "list", tmp_path, "--json").json
        assert (first["status"], first["records"], first["duration_s"]) == ("finished", 3, 0.6)
        assert first["durations"] == {"settle_s": 0.05, "prepare_s": 0.2, "decide_s": 0.01, "commit_s": 0.3}
        assert first["triggered_at"] == 1_700_000_000.0
        assert first["kept"]
        assert (second["status"], second["duration_s"], second["kept"]) == ("in doubt", 0.25, False)
        assert (third["status"], third["attempts"], third["aborted"]) == ("aborted", 1, 1)

    def test_its_size_is_what_the_epoch_added(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        journal.put(timed(0))
        finish(tmp_path, 0)
        sizes = [(tmp_path / path).stat().st_size for path in ("offsets/0", "commits/0")]
        [attempt] = (tmp_path / "tallystick" / "attempts").iterdir()
        files = {"state/0/0/1.delta": b"12345", "state/0/1/1.changelog": b"123", "state/0/1/2.delta": b"1234567"}
        for path, data in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
        [only] = tally("checkpoints", "list", tmp_path, "--json").json
        assert only["bytes"] == sum(sizes) + attempt.stat().st_size + 8

    def test_an_epoch_without_a_decision_runs(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}")
        [only] = tally("checkpoints", "list", tmp_path, "--json").json
        assert (only["epoch"], only["status"], only["records"]) == (0, "running", 0)

    def test_as_a_table(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        for epoch in range(25):
            journal.put(timed(epoch))
        finish(tmp_path, *range(25))
        printed = tally("checkpoints", "list", tmp_path).out
        assert "5 older epochs not shown: --epochs 25" in printed
        assert "job pv: 25 epochs, of which Spark keeps 25 in full" in printed
        assert len(tally("checkpoints", "list", tmp_path, "--epochs", "2", "--json").json) == 2

    def test_a_folder_that_is_no_checkpoint(self, tally: Tally, tmp_path: Path) -> None:
        ran = tally("checkpoints", "list", tmp_path / "nowhere")
        assert ran.status == 1
        assert "there is no folder" in ran.err


class TestShow:
    def test_offsets_and_transactions(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        journal.put(timed(0))
        finish(tmp_path, 0)
        (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"views":{"0":1000,"1":998}}')
        found = tally("checkpoints", "show", tmp_path, "0", "--json").json
        assert found["epoch"] == 0
        assert found["sources"] == [
            {"name": "source-0", "offsets": {"0": 1000, "1": 998}, "logged": {"views": {"0": 1000, "1": 998}}}
        ]
        assert found["operators"] == []
        [transaction] = found["transactions"]
        assert (transaction["sink"], transaction["slice"], transaction["state"]) == ("files", 0, "committed")
        printed = tally("checkpoints", "show", tmp_path).out.splitlines()
        assert printed[0].startswith("chk-0 of job pv: finished")
        assert printed[1] == "offset (0,1000) (1,998)"
        assert printed[2].startswith("transaction files/0 committed 3 records")

    def test_what_is_decided_and_not_confirmed_is_in_doubt(
        self, tally: Tally, journal: Journal, tmp_path: Path
    ) -> None:
        journal.put(timed(0))
        (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}")
        [transaction] = tally("checkpoints", "show", tmp_path, "0", "--json").json["transactions"]
        assert transaction["state"] == "in doubt"

    def test_an_epoch_whose_logs_are_gone_is_shown_from_the_journal(
        self, tally: Tally, journal: Journal, tmp_path: Path
    ) -> None:
        for epoch in range(3):
            journal.put(timed(epoch))
        finish(tmp_path, 2)
        found = tally("checkpoints", "show", tmp_path, "1", "--json").json
        assert found["sources"][0]["offsets"] == {"0": 10}
        assert found["kept"] is False

    def test_an_epoch_that_is_not_there(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        journal.put(timed(0))
        finish(tmp_path, 0)
        ran = tally("checkpoints", "show", tmp_path, "7")
        assert ran.status == 1
        assert "has no epoch 7: the newest that was begun is 0" in ran.err

    def test_state_metadata_that_makes_no_sense(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        journal.put(timed(0))
        finish(tmp_path, 0)
        (tmp_path / "state" / "0" / "_metadata").mkdir(parents=True)
        (tmp_path / "state" / "0" / "_metadata" / "metadata").write_text("v1\n{}")
        ran = tally("checkpoints", "show", tmp_path, "0")
        assert ran.status == 1
        assert "does not describe an operator of Spark" in ran.err


class TestPrune:
    def test_old_logs_go_and_the_audit_stays(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        for epoch in range(250):
            journal.put(timed(epoch))
        finish(tmp_path, *range(250))
        before = list(audit_lines(journal))
        pruned = tally("checkpoints", "prune", tmp_path, "--keep", "3", "--json").json
        assert (pruned["epochs"], pruned["files"], pruned["kept"]) == (247, 494, 3)
        left = sorted(path.name for path in (tmp_path / "commits").iterdir())
        assert left == [".247.crc", ".248.crc", ".249.crc", "247", "248", "249"]
        assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["247", "248", "249"]
        assert list(audit_lines(journal)) == before
        assert len(list((tmp_path / "tallystick" / "attempts").iterdir())) < 250
        assert tally("checkpoints", "prune", tmp_path, "--keep", "3", "--json").json["epochs"] == 0

    def test_what_is_not_finished_is_kept(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        finish(tmp_path, 0, 1, 2, 3)
        (tmp_path / "offsets" / "4").write_text("v1\n{}\n{}")
        tally("checkpoints", "prune", tmp_path, "--keep", "2")
        assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["2", "3", "4"]

    def test_a_living_driver_is_left_alone(self, tally: Tally, journal: Journal, tmp_path: Path) -> None:
        finish(tmp_path, 0, 1, 2, 3)
        assert journal.store.try_lock()
        try:
            ran = tally("checkpoints", "prune", tmp_path, "--keep", "2")
        finally:
            journal.store.unlock()
        assert ran.status == 1
        assert "a living driver holds" in ran.err
        assert len(list((tmp_path / "offsets").iterdir())) == 4


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ({"offset": 40}, {"0": 40}),
        ({"logOffset": 3}, {"0": 3}),
        ({"views": {"0": 1000, "1": 998}}, {"0": 1000, "1": 998}),
        ({"views": {"0": 1}, "clicks": {"0": 2}}, {"views/0": 1, "clicks/0": 2}),
        ({"shard-1": "49590338271490256608559692538361571095921575989136588898"}, None),
        (None, {"0": None}),
        ("what is this", {"0": "what is this"}),
    ],
)
def test_offsets_by_partition(logged: Json, expected: Json) -> None:
    assert by_partition(logged) == (expected if expected is not None else logged)


def test_names_that_do_not_fit_are_not_guessed() -> None:
    assert [entry["name"] for entry in sources([{"offset": 1}, {"offset": 2}], ["only"])] == ["source-0", "source-1"]


def test_the_cut_as_people_write_it() -> None:
    sample = [{"key": {"app": f"app{n}"}, "value": {"pv": n * 10}} for n in (1, 2)]
    state = [{"name": "default", "keys": 5, "sample": sample}]
    found = {"sources": [{"name": "kafka", "offsets": {"0": 1000}}], "operators": [{"state": state}]}
    assert cut_lines(found) == ["offset (0,1000)", "pv (app1,10) (app2,20) … 3 more keys"]
    assert keyed([{"key": {"user": 7}, "value": {"items": ["a", "b"], "note": None}}]) == "(7,[a b],null)"
