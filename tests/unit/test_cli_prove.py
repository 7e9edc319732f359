"""``tallystick prove``, as far as it goes without Spark: what is wrong is told at once, and never green by mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.cli import main
from tallystick.cli.prove import _as_before
from tallystick.prover.campaign import Order
from tallystick.prover.faults import draw
from tallystick.prover.faults.draw import Means
from tallystick.prover.life import LifePlan
from tallystick.prover.place import Place
from tallystick.prover.workload import Workload

JOBS = """
import tallystick as ts

rows = ts.sources.Collection([{"id": 1}])
files = ts.Job("files", source=rows, sink=ts.sinks.Files("FOLDER/out"), checkpoint="FOLDER/checkpoint")
memory = ts.Job("memory", source=rows, sink=ts.sinks.Memory("m"), checkpoint="FOLDER/checkpoint-m")
prove_input = 3
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.py"
    path.write_text(JOBS.replace("FOLDER", str(tmp_path)).replace("prove_input = 3\n", ""))
    return path


def left_with(*words: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(["prove", *words])
    return left.value.code


def test_a_sink_that_cannot_be_read_back_is_unknown(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left_with(f"{jobs}:memory", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["kills"], told["checks"]) == ("unknown", 0, {})
    assert told["needed"].startswith("one of cassandra, delta, ")
    assert set(told) >= {"verdict", "checks", "kills", "faults", "seed", "recovery_s"}


def test_in_words(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left_with(f"{jobs}:memory") == 1
    told = capsys.readouterr().out
    assert "verdict: unknown" in told
    assert "why: the prover cannot read the output of the sink memory:m back" in told
    assert "needed: one of" in told


def test_the_page_of_an_unknown_verdict(jobs: Path, tmp_path: Path) -> None:
    assert left_with(f"{jobs}:memory", "--report", str(tmp_path / "page.html")) == 1
    assert 'class="verdict unknown"' in (tmp_path / "page.html").read_text()


def test_servers_where_there_are_none(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left_with(f"{jobs}:files", "--faults", "servers", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "unknown"
    assert "talks to no server" in told["why"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--faults", "gremlins"], "there are no faults called 'gremlins': needed one of kill-points, random"),
        (["--records", "3"], "need to be multiples of 2"),
        (["--for", "soon"], "soon"),
        (["--replay", "nowhere"], "there is no history nowhere"),
        (["--replay", "JOBS"], "needed the history.jsonl of a round"),
        (["--keep", "FOLDER"], "is not empty: choose a new folder"),
    ],
)
def test_what_is_typed_wrong(jobs: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.with_name("begin.jsonl").write_text('{"event": "started"}\n')
    told = [
        word.replace("FOLDER", str(jobs.parent)).replace("JOBS", str(jobs.with_name("begin.jsonl"))) for word in words
    ]
    assert left_with(f"{jobs}:files", *told) == 1
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_hook_that_is_no_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.py"
    path.write_text(JOBS.replace("FOLDER", str(tmp_path)))
    assert left_with(f"{path}:files") == 1
    assert "prove_input is a int, needed a function" in " ".join(capsys.readouterr().err.split())


def test_a_replay_has_the_faults_and_the_records_of_the_round(tmp_path: Path) -> None:
    schedule = draw(9, "kill-points", 3, Means())
    plan = LifePlan("job.py", Workload(5, schedule.epochs, 12), Place("", ""), "spark://127.0.0.1:7077")
    line = {"event": "begun", "schedule": schedule.to_json(), "plan": plan.to_json()}
    (tmp_path / "history.jsonl").write_text(json.dumps(line) + "\n")
    again = _as_before(Order("job.py"), tmp_path)
    assert again.replay == schedule
    assert (again.seed, again.records_per_epoch, again.cluster) == (5, 12, True)
