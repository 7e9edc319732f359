"""When a server's process counts as ended: not before the last of its threads."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tallystick.servers.process import Program, ServerProcess

# The first thread ends, and the other one goes on, as Redis' background threads do while it exits.
OUTLIVED_BY_A_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def first_thread_is_a_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="threads are looked up in /proc")
def test_a_process_runs_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    mine = ServerProcess(Program("threads", [sys.executable, "-c", OUTLIVED_BY_A_THREAD]), tmp_path)
    mine.start()
    found = ServerProcess(mine.program, tmp_path)
    try:
        deadline = time.monotonic() + 30
        while not first_thread_is_a_zombie(mine.pid or 0):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert found.pid == mine.pid
        found.kill()
        assert (found.pid, mine.pid) == (None, None)
    finally:
        mine.kill()
