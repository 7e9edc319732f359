"""The command line as a whole: help, version, usage, exit status, and what it costs to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tallystick
from cli_runner import Tally
from tallystick.cli.console import for_people

GROUPS = {
    "checkpoints": ("list", "prune", "show"),
    "savepoint": ("create", "restore"),
    "transactions": ("list", "resolve"),
}
COMMANDS = (
    *("audit", "doctor", "explain", "guarantees", "init", "run"),
    *(f"{group} {command}" for group, commands in GROUPS.items() for command in commands),
)


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def test_version(tally: Tally) -> None:
    ran = tally("--version")
    assert (ran.status, ran.out) == (0, f"tallystick {tallystick.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(tally: Tally, command: str) -> None:
    ran = tally(*command.split(), "--help")
    assert ran.status == 0
    assert "Usage: tallystick" in ran.out
    assert "Example" in ran.out


def test_help_fits_eighty_columns(tally: Tally) -> None:
    for command in ("", *COMMANDS):
        ran = tally(*command.split(), "--help")
        assert max(len(line) for line in ran.out.splitlines()) <= 80, command


@pytest.mark.parametrize("typed", [["audit"], ["nonsense"], ["guarantees", "--nope"], ["audit", "x", "--epochs", "0"]])
def test_what_is_typed_wrong_ends_with_2(tally: Tally, typed: list[str]) -> None:
    ran = tally(*typed)
    assert ran.status == 2
    assert ran.out == ""


def test_help_imports_neither_spark_nor_arrow() -> None:
    script = (
        "import sys\n"
        "from tallystick.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pyspark', 'py4j', 'pyarrow', 'numpy', 'pandas'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "--version"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"tallystick {tallystick.__version__}\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tallystick.cli import main
    from tallystick.errors import CheckpointError

    with pytest.raises(CheckpointError):
        main(["audit", str(tmp_path), "--debug"])


def test_an_error_is_one_paragraph_and_json_if_asked(tally: Tally, tmp_path: Path) -> None:
    plain = tally("audit", tmp_path)
    assert (plain.status, plain.out) == (1, "")
    assert plain.err.startswith("error: ")
    assert plain.err.count("\n") == 1
    asked = tally("audit", tmp_path, "--json")
    assert asked.status == 1
    assert asked.json["error"]["kind"] == "CheckpointError"
    assert str(tmp_path) in asked.json["error"]["message"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "?"),
        (0.312, "0.31 s"),
        (59.4, "59 s"),
        (125.0, "2 m 5 s"),
        (3 * 3600 + 120, "3 h 2 m"),
        (90000.0, "1 d 1 h"),
    ],
)
def test_durations_for_people(seconds: float | None, words: str) -> None:
    assert for_people(seconds) == words
