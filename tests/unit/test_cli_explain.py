"""``tallystick explain`` and how job files are loaded. No Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import Tally
from tallystick.spark.jobfile import load_job

HEAD = "import tallystick as ts\nrows = ts.sources.Collection([{'id': 1}])\n"


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def write(folder: Path, *jobs: str, head: str = HEAD) -> Path:
    path = folder / "jobs.py"
    path.write_text(head + "\n".join(jobs) + "\n")
    return path


def job(variable: str, name: str, sink: str = "ts.sinks.Memory('t')", more: str = "") -> str:
    return f"{variable} = ts.Job({name!r}, source=rows, sink={sink}, checkpoint='c-{name}'{more})"


def test_the_plan(tally: Tally, tmp_path: Path) -> None:
    path = write(tmp_path, job("pv", "app-pv"))
    answer = tally("explain", path, "--json")
    assert answer.status == 0
    assert answer.json["guarantee"] == "exactly-once"
    assert answer.json["findings"] == []
    assert [node["role"] for node in answer.json["nodes"]] == ["source", "coordinator", "sink"]
    shown = tally("explain", path)
    assert "job app-pv: exactly-once holds" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80


def test_a_guarantee_that_cannot_hold_is_explained(tally: Tally, tmp_path: Path) -> None:
    path = write(tmp_path, job("pv", "app-pv", "ts.sinks.Stdout()"))
    answer = tally("explain", path, "--json")
    assert answer.status == 1
    assert answer.json["guarantee"] == "at-least-once"
    assert answer.json["findings"][0]["rule"] == "sink-may-repeat"
    assert answer.json["error"]["kind"] == "ConfigError"
    shown = tally("explain", path)
    assert shown.status == 1
    assert "sink-may-repeat" in shown.out
    assert "to do:" in shown.out


def test_a_weaker_guarantee_that_was_asked_for_holds(tally: Tally, tmp_path: Path) -> None:
    path = write(tmp_path, job("pv", "app-pv", "ts.sinks.Stdout()", ", guarantee='at-least-once'"))
    answer = tally("explain", path, "--json")
    assert (answer.status, answer.json["guarantee"]) == (0, "at-least-once")


def test_any_other_wrong_declaration_is_an_error(tally: Tally, tmp_path: Path) -> None:
    path = write(tmp_path, job("pv", "app-pv", "ts.sinks.Files('o', format='xls')"))
    answer = tally("explain", path, "--json")
    assert answer.status == 1
    assert (answer.json["guarantee"], answer.json["nodes"]) == (None, [])
    assert "xls" in answer.json["error"]["message"]
    assert "xls" in answer.err


def test_several_jobs_need_a_name(tally: Tally, tmp_path: Path) -> None:
    path = write(tmp_path, job("one", "first"), job("two", "second"), "alias = two")
    ran = tally("explain", path)
    assert ran.status == 1
    assert "one (first), two (second)" in ran.err
    for name in ("two", "second", "alias"):
        assert tally("explain", f"{path}:{name}", "--json").json["job"] == "second"
    assert "no job called 'three'" in tally("explain", f"{path}:three").err


def test_one_job_under_two_names_is_one_job(tmp_path: Path) -> None:
    assert load_job(str(write(tmp_path, job("one", "first"), "also = one"))).name == "first"


def test_no_job_and_no_file(tally: Tally, tmp_path: Path) -> None:
    assert "declares no job" in tally("explain", write(tmp_path)).err
    assert "there is no file" in tally("explain", tmp_path / "none.py").err
    assert "is a folder" in tally("explain", tmp_path).err
    (tmp_path / "jobs.txt").write_text("")
    assert "must end in .py" in tally("explain", tmp_path / "jobs.txt").err


@pytest.mark.parametrize(
    ("text", "line", "kind"),
    [
        ("x = 1\ny = x + unknown\n", 2, "NameError"),
        ("x = (\n", 1, "SyntaxError"),
        ("\n\nimport not_there_at_all\n", 3, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("def f():\n    return {}['key']\nf()\n", 2, "KeyError"),
    ],
)
def test_errors_of_the_file_are_short_and_name_the_line(
    tally: Tally, tmp_path: Path, text: str, line: int, kind: str
) -> None:
    path = write(tmp_path, head=text)
    ran = tally("explain", path)
    assert ran.status == 1
    assert f"{path}, line {line}: {kind}" in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1


def test_a_file_imports_its_neighbours_and_is_no_main(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_jobs.py").write_text("NAME = 'beside'\n")
    text = HEAD + "from neighbour_of_jobs import NAME\nassert __name__ != '__main__'\n"
    path = write(tmp_path, "pv = ts.Job(NAME, source=rows, sink=ts.sinks.Memory('t'), checkpoint='c')", head=text)
    assert load_job(str(path)).name == "beside"


def test_functions_of_the_file_travel_with_their_code(tmp_path: Path) -> None:
    """A worker cannot import the file, so what it is sent must not refer to it."""
    import pickle
    import subprocess
    import sys

    from pyspark import cloudpickle

    text = HEAD + "OFFSET = 40\ndef steps(rows):\n    return rows + OFFSET\n"
    loaded = load_job(str(write(tmp_path, job("pv", "app-pv", more=", steps=steps"), head=text)))
    data = cloudpickle.dumps(loaded.steps)  # type: ignore[no-untyped-call]
    assert pickle.loads(data)(2) == 42
    script = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(2))"
    done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, timeout=120)
    assert done.stdout.strip() == b"42", done.stderr.decode()
