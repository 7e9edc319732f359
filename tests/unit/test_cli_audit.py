"""``tallystick audit``: nothing is counted twice, nothing that was lost is counted at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import Tally, abort, commit, finish, new_checkpoint, vote
from tallystick.cli.ledger import ledger
from tallystick.journal import Journal, Note, audit_lines, roll_up
from tallystick.records import Attempt, Fingerprint, Mode, Parts

NOTHING = Parts()


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return new_checkpoint(tmp_path)


def test_totals_and_epochs(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(3), vote(4, slice_=1), vote(7, "kafka")))
    journal.put(abort(1, 1))
    journal.put(commit(1, 2, vote(10)))
    finish(tmp_path, 0)
    answer = tally("audit", tmp_path, "--json").json
    assert answer["job"] == "pv"
    assert answer["ok"] is True
    totals = answer["totals"]
    assert {key: totals[key] for key in ("epochs", "records", "attempts", "aborted")} == {
        "epochs": 2,
        "records": 24,
        "attempts": 3,
        "aborted": 1,
    }
    assert totals["by_sink"]["files"] == {"records": 17, "refused": 0, "fingerprint": str(Fingerprint(17, 21))}
    first, second = answer["epochs"]
    assert first["sinks"]["kafka"]["records"] == 7
    assert (first["settled"], second["settled"]) == (True, False)
    assert (second["attempts"], second["aborted"]) == (2, 1)
    assert second["facts"]["until_decision_s"] == 0.25


def test_a_verification_is_not_counted_again(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    journal.put(commit(0, 2, replaces=NOTHING))
    answer = tally("audit", tmp_path, "--json").json
    assert answer["totals"]["records"] == 5
    assert answer["epochs"][0]["verified"] == 1


def test_rewritten_slices_are_not_counted_again(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5), vote(6, slice_=1), vote(9, "kafka")))
    slices = Parts(frozenset({"kafka"}), frozenset({("files", 1)}))
    journal.put(commit(0, 2, vote(6, slice_=1), vote(4, "kafka"), vote(5, "kafka", 1), replaces=slices))
    answer = tally("audit", tmp_path, "--json").json
    assert answer["totals"]["records"] == 20
    assert answer["epochs"][0]["rewritten"] == 1


def test_a_rewrite_with_other_rows_counts_what_is_in_force(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5), vote(6, slice_=1)))
    journal.put(commit(0, 2, vote(8, slice_=1), replaces=Parts(slices=frozenset({("files", 1)}))))
    assert tally("audit", tmp_path, "--json").json["totals"]["records"] == 13


def test_an_epoch_done_again_at_least_once_counts_once_and_is_noted(journal: Journal) -> None:
    journal.put(commit(0, 1, vote(5), mode=Mode.AT_LEAST_ONCE))
    journal.put(commit(0, 2, vote(5), mode=Mode.AT_LEAST_ONCE))
    found = ledger(audit_lines(journal))
    assert found.totals_json()["records"] == 5
    assert [note["kind"] for note in found.epochs[0].notes] == ["done again"]


def test_at_most_once_counts_what_was_delivered(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    delivered = {"votes": [vote(5).to_json()], "lost": [vote(2, slice_=1).to_json()]}
    journal.put(commit(0, 1, mode=Mode.AT_MOST_ONCE))
    journal.note(Note(Attempt(0, 1), "delivered", delivered))
    journal.put(commit(1, 1, mode=Mode.AT_MOST_ONCE))
    journal.put(commit(1, 2, replaces=NOTHING, mode=Mode.AT_MOST_ONCE))
    journal.note(Note(Attempt(1, 2), "skipped", {"votes": [vote(5).to_json()]}))
    ran = tally("audit", tmp_path, "--json")
    assert ran.status == 0
    assert [epoch["records"] for epoch in ran.json["epochs"]] == [5, 0]


def test_abandoned_rows_are_taken_out_once_and_the_status_is_1(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5), vote(6, slice_=1)))
    for generation in (2, 3):
        journal.put(commit(0, generation, replaces=NOTHING))
        journal.note(Note(Attempt(0, generation), "abandoned", {"votes": [vote(6, slice_=1).to_json()]}))
    ran = tally("audit", tmp_path, "--json")
    assert ran.status == 1
    assert (ran.json["ok"], ran.json["losses"]) == (False, [0])
    assert ran.json["totals"]["by_sink"]["files"] == {
        "records": 5,
        "refused": 0,
        "fingerprint": str(Fingerprint(5, 7)),
    }
    assert "given up" in tally("audit", tmp_path).out


def test_rolled_up_epochs_count_the_same(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    for epoch in range(12):
        journal.put(commit(epoch, 1, vote(epoch + 1)))
    journal.put(commit(2, 2, replaces=NOTHING))
    journal.put(commit(3, 2, vote(4), replaces=Parts(sinks=frozenset({"files"}))))
    before = tally("audit", tmp_path, "--json").json["totals"]
    assert roll_up(journal, settled=11, epochs=5)
    assert tally("audit", tmp_path, "--json").json["totals"] == before
    assert before["records"] == 78


def test_the_table_shows_the_last_epochs(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    for epoch in range(25):
        journal.put(commit(epoch, 1, vote(1000 + epoch)))
    finish(tmp_path, *range(24))
    shown = tally("audit", tmp_path)
    assert "5 older epochs not shown" in shown.out
    assert "1,004" not in shown.out
    assert "in doubt" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert len(tally("audit", tmp_path, "--json").json["epochs"]) == 25
    assert len(tally("audit", tmp_path, "--json", "--epochs", "3").json["epochs"]) == 3


def test_a_damaged_journal_is_an_error(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    record = next((tmp_path / "tallystick" / "attempts").iterdir())
    record.write_bytes(record.read_bytes()[:-20])
    ran = tally("audit", tmp_path, "--json")
    assert ran.status == 1
    assert ran.json["error"]["kind"] == "JournalCorruptError"
    assert record.name in ran.err


def test_what_is_no_checkpoint_is_an_error(tally: Tally, tmp_path: Path) -> None:
    assert "there is no folder" in tally("audit", tmp_path / "nowhere").err
    assert "is no checkpoint" in tally("audit", tmp_path).err
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}")
    assert "without a journal" in tally("audit", tmp_path).err


def test_a_uri_is_read_like_a_path(tally: Tally, journal: Journal, tmp_path: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    assert tally("audit", f"{tmp_path.as_uri()}/", "--json").json["totals"]["records"] == 5
