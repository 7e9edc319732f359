"""``tallystick demo``, as a person runs it: real kills in all three modes, and the JSON that was promised."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

DEMO = [sys.executable, "-m", "tallystick", "demo"]
WAIT_S = 120


def shown(*options: str) -> Any:
    ended = subprocess.run([*DEMO, *options, "--json"], capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def assert_as_promised(modes: Any, kills: int) -> None:
    exact, at_least, at_most = (modes[mode] for mode in ("exactly-once", "at-least-once", "at-most-once"))
    assert [mode["kills"] for mode in (exact, at_least, at_most)] == [kills] * 3
    assert [mode["phantom"] for mode in (exact, at_least, at_most)] == [0] * 3
    assert (exact["lost"], exact["repeated"], exact["delivered"]) == (0, 0, exact["expected"])
    assert at_least["lost"] == 0
    assert at_least["repeated"] > 0
    assert at_most["lost"] > 0
    assert at_most["repeated"] == 0


def test_the_demo_shows_what_each_mode_promises() -> None:
    found = shown("--kills", "1")
    assert_as_promised(found["modes"], kills=1)
    assert found["checkpoint"].startswith("chk-3  offset (0,1000)  pv (app1,")


@pytest.mark.slow  # in make test the Kafka kill matrix shows the same, and the demo on files the rest
def test_the_demo_on_a_real_broker(tmp_path: Path) -> None:
    found = shown("--kafka", "--kills", "1", "--keep", str(tmp_path / "kept"))
    assert_as_promised(found["modes"], kills=1)
    assert found["checkpoint"].startswith("chk-3  offset (0,500) (1,500)  pv (app1,")
    assert not brokers_in(tmp_path), "the broker is stopped at the end"


@pytest.mark.slow
def test_the_demo_on_a_real_broker_with_every_kill() -> None:
    found = shown("--kafka", "--kills", "4")
    assert_as_promised(found["modes"], kills=4)


def test_a_demo_that_is_ended_early_leaves_no_process(tmp_path: Path) -> None:
    """As soon as its jobs are on their way."""
    command = [*DEMO, "--kafka", "--keep", str(tmp_path / "kept")]
    with (tmp_path / "log").open("w") as log:
        demo = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not list(tmp_path.glob("kept/*/job.log")):
            assert demo.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, "no job was started"
            time.sleep(0.1)
        assert brokers_in(tmp_path)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(WAIT_S) == 128 + signal.SIGTERM
        assert not of_the_folder(tmp_path)
    finally:
        for process in [demo.pid, *of_the_folder(tmp_path)]:
            if psutil.pid_exists(process):
                os.kill(process, signal.SIGKILL)
        demo.wait()


def test_without_java_the_demo_says_what_to_do(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(
        [*DEMO, "--kafka"], capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment
    )
    assert ended.returncode == 1
    assert "set it to a Java 17 or 21" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_the_extra_the_demo_says_what_to_install() -> None:
    program = "import sys; sys.modules['confluent_kafka'] = None; from tallystick.cli import main; main()"
    command = [sys.executable, "-c", program, "demo", "--kafka"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
    assert "pip install 'tallystick[kafka]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def of_the_folder(folder: Path) -> list[int]:
    """Living processes that have the folder in their command: the broker and the jobs."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and process.info["pid"] != os.getpid():
            found += [process.info["pid"]] if str(folder) in " ".join(process.info["cmdline"] or []) else []
    return found


def brokers_in(folder: Path) -> list[int]:
    return [pid for pid in of_the_folder(folder) if "kafka.Kafka" in psutil.Process(pid).cmdline()]
