"""``tallystick run`` watches over its driver: one that is killed, or whose JVM is, is started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tallystick.killpoints import ENVIRONMENT
from tallystick.prover import tally

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

TIMEOUT_S = 240
JOB = """
import tallystick as ts

job = ts.Job(
    "watched",
    source=ts.sources.Collection(lambda number: {"id": number}, length=120, schema="id long", per_epoch=10),
    sink=ts.sinks.Files("out", format="json"),
    checkpoint=ts.Checkpoint("checkpoint", interval="300ms"),
    restart=ts.FixedDelay(attempts=2, delay="200ms"),
)
"""


class Watched:
    """The command as a user starts it, its output in a file."""

    def __init__(self, folder: Path, *options: str, kill: str | None = None) -> None:
        (folder / "job.py").write_text(JOB)
        self.folder = folder
        self.log = folder / "log"
        environment = {**os.environ, **({ENVIRONMENT: kill} if kill is not None else {})}
        command = [sys.executable, "-m", "tallystick", "run", "job.py", "--master", "local[2]", "--fast-start"]
        with self.log.open("w") as errors:
            # a group of its own: an armed kill takes the whole group down
            self.process = psutil.Popen(
                [*command, *options], cwd=folder, stderr=errors, env=environment, start_new_session=True
            )

    def until(self, found: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not found(self.log.read_text()):
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def ended(self) -> int:
        return int(self.process.wait(TIMEOUT_S))

    def driver(self) -> psutil.Process:
        [driver] = self.process.children()
        return driver

    def ids(self) -> list[int]:
        return [
            json.loads(line)["id"]
            for path in (self.folder / "out").glob("*.json")
            for line in path.read_text().splitlines()
        ]

    def clean_up(self) -> None:
        if self.process.poll() is None:
            for process in [*self.process.children(recursive=True), self.process]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(*options: str, kill: str | None = None) -> Watched:
        made.append(Watched(tmp_path, *options, kill=kill))
        return made[-1]

    yield start
    for watched in made:
        watched.clean_up()


def test_a_killed_driver_is_started_again_and_goes_on(watch: Callable[..., Watched]) -> None:
    watched = watch("--available-now")
    watched.until(lambda printed: "epoch 3 " in printed)
    os.killpg(watched.driver().pid, signal.SIGKILL)
    assert watched.ended() == 0, watched.log.read_text()
    assert "its driver was killed by SIGKILL; restart 1 in 0.2 s" in watched.log.read_text()
    assert tally(range(120), watched.ids()).exact


def test_a_driver_that_was_told_to_die_is_not_brought_back(watch: Callable[..., Watched]) -> None:
    watched = watch("--available-now", kill="after-decide@3")
    assert watched.ended() == -signal.SIGKILL, watched.log.read_text()
    assert "killed at after-decide@3" in watched.log.read_text()


def jvm_of(driver: psutil.Process) -> psutil.Process:
    """The oldest: one that it is just forking has its name, too, and may be gone before it is looked at."""
    found: list[tuple[float, psutil.Process]] = []
    for child in driver.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "java" in child.name():
                found.append((child.create_time(), child))
    return min(found)[1]


def test_a_driver_without_its_jvm_is_started_again(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.until(lambda printed: "epoch 1 " in printed)
    jvm_of(watched.driver()).kill()
    watched.until(lambda printed: printed.count("epoch 11 ") == 1)
    watched.process.send_signal(signal.SIGINT)
    assert watched.ended() == 0, watched.log.read_text()
    printed = watched.log.read_text()
    assert "its driver lost its JVM; restart 1" in printed
    assert "Traceback" not in printed
    assert tally(range(120), watched.ids()).exact


def test_a_driver_whose_parent_was_killed_stops(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.until(lambda printed: "epoch 1 " in printed)
    driver = watched.driver()
    family = [driver, *driver.children(recursive=True)]
    watched.process.kill()
    _, alive = psutil.wait_procs(family, TIMEOUT_S)
    assert not alive, watched.log.read_text()
    assert "stopped after" in watched.log.read_text()
    rerun = subprocess.run(
        [sys.executable, "-m", "tallystick", "run", "job.py", "--available-now"],
        cwd=watched.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert rerun.returncode == 0, rerun.stderr
    assert tally(range(120), watched.ids()).exact


def test_deaths_without_progress_use_the_restarts_up(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB + "\nimport os, sys\nif 'TALLYSTICK_SUPERVISOR' in os.environ: os.abort()\n")
    ran = subprocess.run(
        [sys.executable, "-m", "tallystick", "run", "job.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 1
    assert [line for line in ran.stderr.splitlines() if "its driver" in line] == [
        "job watched: its driver was killed by SIGABRT; restart 1 in 0.2 s",
        "job watched: its driver was killed by SIGABRT; restart 2 in 0.2 s",
        "job watched: its driver was killed by SIGABRT; no restart is left",
    ]
