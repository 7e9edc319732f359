"""The folder for the sockets between Spark and its Python workers: closed, short, and not left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tallystick.scratch import scratch_folder
from tallystick.spark import sockets
from tallystick.spark.sockets import ENABLED, FOLDER, NAME_BYTES, PATH_BYTES_MAX, socket_settings


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Short, because paths of sockets are."""
    made = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr(sockets, "_folder_of", sockets._folder_of.__wrapped__)
    return made


def elsewhere(temporary: Path, then: str) -> subprocess.Popen[str]:
    """Another process with sockets in the same place. It prints its folder first."""
    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}; import tallystick.spark.sockets as s; "
    code += f"print(s.socket_settings()[{FOLDER!r}], flush=True); {then}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_a_folder_of_this_process_that_others_cannot_enter(temporary: Path) -> None:
    settings = socket_settings()
    folder = Path(settings[FOLDER])
    assert settings[ENABLED] == "true"
    assert folder.parent.parent.parent == temporary
    assert folder.name.startswith(f"{os.getpid()}-")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent.parent)} == {0o700}
    assert len(str(folder)) + NAME_BYTES <= PATH_BYTES_MAX


def test_a_killed_process_leaves_a_folder_that_is_swept_and_a_living_one_keeps_its_own(temporary: Path) -> None:
    killed, living = (elsewhere(temporary, "input()") for _ in range(2))
    left, kept = folder_of(killed), folder_of(living)
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    (left / ".some.sock").touch()
    assert left.exists()
    socket_settings()
    assert not left.exists()
    assert kept.exists()
    living.communicate("\n", timeout=30)
    assert not kept.exists(), "it went with its process"


def test_a_forked_child_does_not_take_the_folder_along(temporary: Path) -> None:
    child = "import os, sys; pid = os.fork(); sys.exit(0) if pid == 0 else os.waitpid(pid, 0); input()"
    process = elsewhere(temporary, child)
    folder = folder_of(process)
    assert folder.exists()
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert not folder.exists()


def test_a_path_that_is_too_long_for_sockets(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert socket_settings() == {}


def test_no_folder_can_be_made(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "is not there"))
    assert socket_settings() == {}


def test_a_folder_that_others_can_enter_is_not_used(temporary: Path) -> None:
    (temporary / f"tallystick-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="other users can enter it"):
        scratch_folder("sockets")
    assert socket_settings() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a folder that is somebody else's")
def test_a_folder_that_belongs_to_somebody_else(temporary: Path) -> None:
    foreign = temporary / f"tallystick-{os.getuid()}"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 65534, 65534)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        scratch_folder("sockets")
    assert socket_settings() == {}
