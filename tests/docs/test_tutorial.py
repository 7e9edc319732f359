"""The tutorial, typed as it stands: made, killed, started again, audited.

It starts Spark twice, so it is part of ``make soak``; `test_pages` checks its commands and options every time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import DOCS, blocks

from tallystick.killpoints import ENVIRONMENT

PAGE = DOCS / "tutorials" / "first-job.md"
TIMEOUT_S = 240


@dataclass(frozen=True)
class Typed:
    status: int
    output: str


def type_in(code: str, folder: Path) -> Typed:
    """As on a terminal: a process group of its own, which the kill takes down."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    log = folder / "typed.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            ["bash", "-ec", code], cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = running.wait(TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the group is gone when its last process is
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    return Typed(status, log.read_text())


@pytest.mark.chaos
@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    make, kill, look, again, audit = [block.code for block in blocks(PAGE) if block.language == "sh" and block.run]
    made = type_in(make, tmp_path)
    assert made.status == 0, made.output
    assert "end to end it is exactly-once" in made.output
    folder = tmp_path / "my-first-job"

    killed = type_in(kill, folder)
    assert killed.status == -signal.SIGKILL, killed.output
    assert "tallystick: killed at after-decide@3" in killed.output
    left = type_in(look, folder)
    assert left.output.count("in doubt") == 2, left.output
    assert left.output.split()[-1] == "9", "three lines for each of three epochs"

    finished = type_in(again, folder)
    assert finished.status == 0, finished.output
    assert finished.output.split()[-1] == "30", finished.output
    books = type_in(audit, folder)
    assert "30 records in 10 epochs, 12 attempts, 1 aborted" in books.output
    assert books.status == 0
    assert_shown(killed.output + finished.output + books.output)


def assert_shown(output: str) -> None:
    """Every line about an epoch that the page shows was really printed."""
    shown = [line for block in blocks(PAGE) if block.language == "text" for line in block.code.splitlines()]
    lines = [line.strip() for line in shown if re.match(r"epoch \d", line)]
    assert len(lines) > 5
    assert [line for line in lines if line not in output] == []
