"""Kill points kill where they are armed, through the environment only, and do nothing anywhere else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tallystick
from tallystick import killpoints
from tallystick.errors import ConfigError
from tallystick.killpoints import DRIVER_POINTS, POINTS, RECEIVER_POINTS, WORKER_POINTS, Armed

REACH = "from tallystick import killpoints; killpoints.reach('after-decide', 3); print('survived')"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process in a group of its own: a kill takes its whole group down."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(killpoints.ENVIRONMENT)}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )


@pytest.mark.parametrize("worker_only", [False, True])
@pytest.mark.parametrize("point", [*POINTS, *RECEIVER_POINTS])
def test_what_is_armed_prints_and_parses(point: str, worker_only: bool) -> None:
    armed = Armed(point, 12, worker_only)
    assert Armed.parse(str(armed)) == armed


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_an_executor_dies_at_points_of_its_workers(point: str) -> None:
    armed = Armed(point, 12, executor_only=True)
    assert str(armed) == f"{point}@12:executor"
    assert Armed.parse(str(armed)) == armed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "after-decide@3:executor",
        "after-decide",
        "after-decide@",
        "@3",
        "after-decide@-1",
        "after-decide@x",
        "after-decide@3:driver",
        "after-decide@3:worker:worker",
        "after-dinner@3",
        "AFTER-DECIDE@3",
        " after-decide@3",
    ],
)
def test_what_is_no_kill_point(text: str) -> None:
    with pytest.raises(ConfigError, match="is no kill point: needed POINT@EPOCH") as caught:
        Armed.parse(text)
    assert repr(text) in str(caught.value)
    assert all(point in str(caught.value) for point in POINTS)


def test_the_points_are_all_different() -> None:
    assert len(set(POINTS)) == len(POINTS) == len(DRIVER_POINTS) + len(WORKER_POINTS)


def test_every_point_is_reached_somewhere_and_nothing_else_is() -> None:
    """A point with a slip in its name would never kill, and the prover would think that it survived."""
    package = Path(tallystick.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py") if path.name != "killpoints.py"]
    calls = [call for text in sources for call in re.findall(r"\b(?:reach|armed)\(([^\n]*)", text)]
    named = {name for call in calls for name in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', call)}
    assert named == {*POINTS, *RECEIVER_POINTS}


def test_nothing_armed_nothing_happens() -> None:
    assert killpoints._armed == (), "the tests themselves run with nothing armed"
    for point in POINTS:
        killpoints.reach(point, 0)
        assert not killpoints.armed(point, 0)


def test_an_armed_point_kills() -> None:
    ended = run(REACH, TALLYSTICK_KILL="after-decide@3")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""
    assert ended.stderr.strip() == "tallystick: killed at after-decide@3"


@pytest.mark.parametrize("armed", ["after-decide@4", "before-decide@3", "after-decide@33"])
def test_another_point_or_epoch_does_not(armed: str) -> None:
    ended = run(REACH, TALLYSTICK_KILL=armed)
    assert (ended.returncode, ended.stdout.strip()) == (0, "survived")


def test_only_the_environment_at_the_start_arms() -> None:
    late = "import os; from tallystick import killpoints; os.environ['TALLYSTICK_KILL'] = 'after-decide@3'; "
    assert run(late + REACH).stdout.strip() == "survived"


def test_an_unknown_point_is_refused_when_the_process_starts() -> None:
    ended = run(REACH, TALLYSTICK_KILL="after-dinner@3")
    assert ended.returncode == 1
    assert "ConfigError" in ended.stderr
    assert "'after-dinner@3' is no kill point" in ended.stderr


def test_armed_tells_without_killing() -> None:
    program = "from tallystick.killpoints import armed; print(armed('inside-commit', 1), armed('inside-commit', 2))"
    assert run(program, TALLYSTICK_KILL="inside-commit@1").stdout.split() == ["True", "False"]


def test_a_worker_is_killed_once(tmp_path: Path) -> None:
    """The task that Spark starts again must get through."""
    settings = {"TALLYSTICK_KILL": "after-decide@3:worker", "TALLYSTICK_KILL_ONCE": str(tmp_path / "once")}
    first = run(REACH, **settings)
    assert first.returncode == -signal.SIGKILL
    assert (tmp_path / "once").exists()
    second = run(REACH, **settings)
    assert (second.returncode, second.stdout.strip()) == (0, "survived")


def test_several_can_be_armed_and_each_kills_once(tmp_path: Path) -> None:
    happened = tmp_path / "once"
    settings = {
        "TALLYSTICK_KILL": "before-begin@1:worker,after-decide@3:worker,after-decide@3",
        "TALLYSTICK_KILL_ONCE": str(happened),
    }
    first, second = run(REACH, **settings), run(REACH, **settings)
    assert first.stderr.strip() == "tallystick: killed at after-decide@3:worker"
    assert second.stderr.strip() == "tallystick: killed at after-decide@3"
    assert [line.split()[0] for line in happened.read_text().splitlines()] == ["after-decide@3:worker"]


def test_a_worker_that_is_to_die_needs_a_marker() -> None:
    ended = run(REACH, TALLYSTICK_KILL="after-decide@3:worker")
    assert ended.returncode == 1
    assert "a kill of a worker or executor alone needs TALLYSTICK_KILL_ONCE" in ended.stderr


WORKER_OF_A_JOB = """
import subprocess, sys
worker = '''
import os
from tallystick import killpoints
killpoints.driver_is({driver})
killpoints.reach("after-write", 1)
'''.format(driver=__import__("os").getpid())
ended = subprocess.run([sys.executable, "-c", worker], start_new_session=True)
print("the driver lives on after", ended.returncode)
"""


def test_a_worker_takes_its_driver_down_with_it() -> None:
    """Spark puts workers into a group of their own, so the driver's group has to be found through the driver."""
    ended = run(WORKER_OF_A_JOB, TALLYSTICK_KILL="after-write@1")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""


def test_a_worker_only_kill_spares_the_driver(tmp_path: Path) -> None:
    settings = {"TALLYSTICK_KILL": "after-write@1:worker", "TALLYSTICK_KILL_ONCE": str(tmp_path / "once")}
    ended = run(WORKER_OF_A_JOB, **settings)
    assert ended.stdout.strip() == f"the driver lives on after {-signal.SIGKILL}"


EXECUTOR_OF_A_JOB = """
import subprocess, sys
worker = "from tallystick import killpoints; killpoints.reach('after-write', 1); print('survived', flush=True)"
daemon = f'''
import subprocess, sys, time
for _ in range(2):
    ended = subprocess.run([sys.executable, "-c", {worker!r}]).returncode
    print("a worker ended with", ended, flush=True)
'''
subprocess.run([sys.executable, "-c", daemon])
print("the executor lives on")
"""


def test_an_executor_dies_with_the_worker_that_reaches_the_point_and_once(tmp_path: Path) -> None:
    settings = {"TALLYSTICK_KILL": "after-write@1:executor", "TALLYSTICK_KILL_ONCE": str(tmp_path / "once")}
    ended = run(EXECUTOR_OF_A_JOB, **settings)
    assert ended.returncode == -signal.SIGKILL, "the process that started the worker's parent"
    said = [f"a worker ended with {-signal.SIGKILL}", "survived", "a worker ended with 0"]
    assert ended.stdout.splitlines() == said
    assert (tmp_path / "once").read_text().startswith("after-write@1:executor ")
