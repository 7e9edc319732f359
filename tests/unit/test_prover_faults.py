"""Faults of the machine itself, on a small process: the clock is wrong, the disk is full, and both heal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from real_servers import need
from tallystick.errors import ConfigError
from tallystick.jvm import find_java
from tallystick.prover.faults.base import World, fault_of
from tallystick.prover.faults.kill import KillAt
from tallystick.prover.faults.machine import Clock, DiskFull, clock_library
from tallystick.prover.history import HistoryFile
from tallystick.prover.place import Place
from tallystick.prover.round import small_disk

HOUR_S = 3600
WAITING = """
public class Waiting {
    public static void main(String[] none) throws Exception {
        long began = System.nanoTime();
        synchronized (Waiting.class) { Waiting.class.wait(300); }
        System.out.println(System.currentTimeMillis() / 1000 + " " + (System.nanoTime() - began) / 1000000);
    }
}
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    place = Place(str(tmp_path), "round-1")
    place.own.mkdir()
    return World(1, place, HistoryFile(tmp_path / "history"))


def test_the_clock_is_compiled_by_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by two proofs that begin together on a new machine."""
    need(clock_library() is not None, "a C compiler: apt-get install gcc")
    monkeypatch.setenv("TALLYSTICK_CACHE", str(tmp_path))
    begin = threading.Barrier(4)

    def compile_once(_: int) -> Path | None:
        begin.wait(30)
        return clock_library.__wrapped__()

    with ThreadPoolExecutor(4) as pool:
        [library] = set(pool.map(compile_once, range(4)))
    assert list(tmp_path.iterdir()) == [library]


@pytest.mark.parametrize("offset_s", [-HOUR_S, HOUR_S])
def test_a_wrong_clock_is_wrong_for_python_and_nothing_else_is(world: World, tmp_path: Path, offset_s: int) -> None:
    need(clock_library() is not None, "a C compiler: apt-get install gcc")
    Clock(offset_s).set_up(world)
    program = (
        "import threading, time, pathlib, sys; began = time.monotonic(); threading.Event().wait(0.3); "
        "pathlib.Path(sys.argv[1]).touch(); print(time.time(), time.monotonic() - began)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        env={**os.environ, **world.environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    now, waited_s = map(float, told.stdout.split())
    assert now == pytest.approx(time.time() + offset_s, abs=60)
    assert waited_s >= 0.29, "a wait was cut short"
    assert (tmp_path / "file").stat().st_mtime == pytest.approx(time.time(), abs=60), "files have the machine's time"


@pytest.mark.parametrize("offset_s", [-HOUR_S, HOUR_S])
def test_a_wrong_clock_does_not_disturb_the_waits_of_the_jvm(world: World, tmp_path: Path, offset_s: int) -> None:
    need(clock_library() is not None, "a C compiler: apt-get install gcc")
    java = find_java()
    need((java.parent / "javac").exists(), "a JDK, to compile a class of ten lines")
    (tmp_path / "Waiting.java").write_text(WAITING)
    Clock(offset_s).set_up(world)
    told = subprocess.run(
        [str(java), str(tmp_path / "Waiting.java")],
        env={**os.environ, **world.environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    now, waited_ms = map(int, told.stdout.split())
    assert now == pytest.approx(time.time() + offset_s, abs=60)
    assert waited_ms >= 290


def test_a_full_disk_takes_no_byte_and_heals(world: World) -> None:
    need(os.geteuid() == 0, "root, to mount a small disk")
    output = world.place.own / "output"
    with small_disk(output):
        fault = DiskFull(0.0, 0.0)
        fault.inject(world)
        with pytest.raises(OSError, match="No space left on device"):
            (output / "row").write_bytes(b"x" * 5000)
        fault.heal(world)
        (output / "row").write_bytes(b"x" * 5000)
    assert not os.path.ismount(output)


def test_a_fault_that_nobody_knows() -> None:
    assert fault_of(KillAt("after-write", 3, True).to_json()) == KillAt("after-write", 3, True)
    with pytest.raises(ConfigError, match="there is no fault 'flood': needed one of clock"):
        fault_of({"kind": "flood"})
