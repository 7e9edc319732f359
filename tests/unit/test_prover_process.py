"""The runner of jobs: groups of processes that are stopped, woken and killed as a whole. Without Spark."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.errors import TallystickError
from tallystick.prover.faults.kill import python_workers
from tallystick.prover.process import JobProcess, command_line, descendants

FAMILY = """
import subprocess, sys, time
count = "import sys, time\\nwhile True:\\n    open(sys.argv[1], 'a').write('x'); time.sleep(0.01)"
child = subprocess.Popen([sys.executable, "-c", count, sys.argv[1]])
child.wait()
"""


def until(true: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_family_is_stopped_woken_and_killed(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    process = JobProcess(["-c", FAMILY, str(marks)], tmp_path / "log")
    try:
        until(lambda: marks.exists() and marks.stat().st_size > 0)
        assert len(descendants(process.pid)) == 2
        process.pause()
        size = marks.stat().st_size
        time.sleep(0.2)
        assert marks.stat().st_size == size, "a child went on"
        process.resume()
        until(lambda: marks.stat().st_size > size)
        family = descendants(process.pid)
    finally:
        process.kill()
    until(lambda: not any(map(command_line, family)))
    assert not process.running()
    process.resume()  # harmless


def test_a_job_that_does_not_end_is_ended_and_an_error(tmp_path: Path) -> None:
    process = JobProcess(["-c", "print('last words', flush=True); import time; time.sleep(60)"], tmp_path / "log")
    until(lambda: "last words" in process.tail())
    with pytest.raises(TallystickError, match=r"(?s)did not end in 0.1 s.*last words"):
        process.wait(0.1)
    assert not process.running()


def test_an_unknown_kill_point_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TallystickError, match="is no kill point"):
        JobProcess(["-c", ""], tmp_path / "log", "after-write@1:worker,after-dinner@2")


def test_workers_are_the_forks_of_the_daemon(tmp_path: Path) -> None:
    """The daemon itself is spared: it would be started anew with everybody below it."""
    (tmp_path / "pyspark.daemon").write_text("import os, time\nos.fork()\ntime.sleep(60)")
    (tmp_path / "driver.py").write_text(
        "import subprocess, sys\nfrom pathlib import Path\n"
        "subprocess.run([sys.executable, Path(__file__).with_name('pyspark' + '.daemon')])"
    )
    process = JobProcess([str(tmp_path / "driver.py")], tmp_path / "log")
    try:
        until(lambda: len(descendants(process.pid)) == 3)
        [worker] = python_workers(process.pid)
        assert worker == descendants(process.pid)[-1]
        assert sys.executable in command_line(worker)
    finally:
        process.kill()
