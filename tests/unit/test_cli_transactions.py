"""``tallystick transactions``: what is not over, and the choice of a person."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cli_runner import Tally, abort, commit, finish, new_checkpoint, vote
from tallystick.journal import Journal
from tallystick.records import Attempt, Fingerprint, Parts, Resolution, Vote
from tallystick.sinks import Files, JobContext, SliceContext

JOB = """
import tallystick as ts

job = ts.Job(
    {name!r},
    source=ts.sources.Collection([{{"id": 1}}]),
    sink=ts.sinks.Files({out!r}, format="json"),
    checkpoint={checkpoint!r},
)
"""


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def journal(checkpoint: Path) -> Journal:
    return new_checkpoint(checkpoint)


def job_file(tmp_path: Path, name: str = "pv") -> Path:
    path = tmp_path / f"{name}.py"
    path.write_text(JOB.format(name=name, out=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint")))
    return path


def staged(sink: Files, journal: Journal, attempt: Attempt, slice_: int, sealed: bool = True) -> Vote:
    """A slice that a task really has prepared, or was killed over."""
    owner = journal.identify(None)
    opened = sink.begin_transaction(SliceContext(owner.id, attempt, "files", slice_, 0))
    sink.write(opened, pa.RecordBatch.from_pydict({"value": ['{"id":1}']}))
    return Vote("files", slice_, Fingerprint(1, 1), sink.pre_commit(opened) if sealed else None)


def test_decided_and_not_finished_is_in_doubt(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    journal.put(commit(1, 1, vote(5), vote(0, slice_=1), vote(6, "kafka")))
    finish(checkpoint, 0)
    entries = tally("transactions", "list", checkpoint, "--json").json
    assert [(entry["sink"], entry["state"], entry["epoch"], entry["generation"]) for entry in entries] == [
        ("files", "in doubt", 1, 1),
        ("kafka", "in doubt", 1, 1),
    ]
    assert entries[0]["name"] == "files-0-5"
    assert entries[0]["age_s"] > 0


def test_only_the_votes_in_force_are_listed(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    journal.put(commit(0, 1, vote(5), vote(6, slice_=1)))
    journal.put(commit(0, 2, vote(7, slice_=1), replaces=Parts(slices=frozenset({("files", 1)}))))
    entries = tally("transactions", "list", checkpoint, "--json").json
    assert [(entry["name"], entry["generation"]) for entry in entries] == [("files-0-5", 1), ("files-1-7", 2)]


def test_nothing_open(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    finish(checkpoint, 0)
    assert tally("transactions", "list", checkpoint, "--json").json == []
    assert "nothing is open" in tally("transactions", "list", checkpoint).out


def test_an_undecided_epoch_is_pointed_out(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    finish(checkpoint, 0)
    (checkpoint / "commits" / "0").unlink()
    assert "--job" in tally("transactions", "list", checkpoint).err


def test_the_sinks_are_asked_with_the_job(tally: Tally, journal: Journal, checkpoint: Path, tmp_path: Path) -> None:
    sink = Files(tmp_path / "out", format="json")
    sink.check(JobContext())
    decided = staged(sink, journal, Attempt(3, 1), 0)
    staged(sink, journal, Attempt(3, 1), 1)
    staged(sink, journal, Attempt(3, 2), 0, sealed=False)
    journal.put(commit(3, 1, decided))
    entries = tally("transactions", "list", checkpoint, "--job", job_file(tmp_path), "--json").json
    assert [(entry["generation"], entry["slice"], entry["state"], entry["next"]) for entry in entries] == [
        (1, 0, "pre-committed", "is committed"),
        (1, 1, "pre-committed", "is rolled back"),
        (2, 0, "begun", "is rolled back"),
    ]
    shown = tally("transactions", "list", checkpoint, "--job", job_file(tmp_path))
    assert "pre-committed" in shown.out


def test_the_job_must_own_the_checkpoint(tally: Tally, journal: Journal, checkpoint: Path, tmp_path: Path) -> None:
    ran = tally("transactions", "list", checkpoint, "--job", job_file(tmp_path, "other"))
    assert ran.status == 1
    assert "belongs to the job 'pv'" in ran.err


@pytest.mark.parametrize(("option", "choice"), [("--rewrite", Resolution.REWRITE), ("--abandon", Resolution.ABANDON)])
def test_resolve_records_the_choice(
    tally: Tally, journal: Journal, checkpoint: Path, option: str, choice: Resolution
) -> None:
    journal.put(commit(4, 1, vote(5)))
    journal.put(abort(4, 2, "the replay differs from what was decided"))
    ran = tally("transactions", "resolve", checkpoint, "4", option, "--yes", "--json")
    assert (ran.status, ran.json) == (0, {"epoch": 4, "resolution": choice.value})
    assert journal.resolution(4) is choice
    assert tally("transactions", "resolve", checkpoint, "4", option, "--yes").status == 0


def test_a_choice_stands(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    journal.put(commit(4, 1, vote(5)))
    tally("transactions", "resolve", checkpoint, "4", "--rewrite", "--yes")
    ran = tally("transactions", "resolve", checkpoint, "4", "--abandon", "--yes")
    assert ran.status == 1
    assert "resolved before, as rewrite" in ran.err
    assert journal.resolution(4) is Resolution.REWRITE


def test_settled_and_unknown_epochs_are_refused(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    journal.put(commit(0, 1, vote(5)))
    journal.put(abort(1, 1))
    finish(checkpoint, 0)
    for epoch, why in (("0", "is settled"), ("1", "no decided epoch 1"), ("9", "no decided epoch 9")):
        ran = tally("transactions", "resolve", checkpoint, epoch, "--abandon", "--yes")
        assert ran.status == 1
        assert why in ran.err
    assert not (checkpoint / "tallystick" / "resolutions").exists()


def test_one_choice_is_needed(tally: Tally, journal: Journal, checkpoint: Path) -> None:
    for options in ([], ["--rewrite", "--abandon"]):
        assert tally("transactions", "resolve", checkpoint, "4", *options, "--yes").status == 2


def test_a_pipe_is_not_asked(tally: Tally, journal: Journal, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.put(commit(4, 1, vote(5)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ran = tally("transactions", "resolve", checkpoint, "4", "--abandon")
    assert ran.status == 1
    assert "--yes" in ran.err
    assert journal.resolution(4) is None
