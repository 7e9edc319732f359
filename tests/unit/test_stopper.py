"""A job stops when it is told to, whichever of its threads the kernel hands the signal to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The main thread sleeps in a read, as it does in awaitTermination; stopping the query is what wakes it up.
JOB = """
import os, signal, sys, threading, time
from types import SimpleNamespace
from tallystick.cli.stopping import Stopper

reads, writes = os.pipe()
query = SimpleNamespace(lastProgress=None, isActive=True, status={"isTriggerActive": False})
query.stop = lambda: os.write(writes, b"x")
spark = SimpleNamespace(streams=SimpleNamespace(active=[query]))
main = threading.main_thread().ident

def send():
    time.sleep(0.5)
    signal.pthread_kill(main if sys.argv[1] == "main" else threading.get_ident(), int(sys.argv[2]))
    time.sleep(60)

with Stopper(lambda: print("told", flush=True)) as stopper:
    stopper.watch(spark)
    threading.Thread(target=send, daemon=True).start()
    os.read(reads, 1)
    stopper.finish()
print("stopped", stopper.asked, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_signal_stops_it_in_whichever_thread_it_arrives(thread: str, number: int) -> None:
    command = [sys.executable, "-c", JOB, thread, str(int(number))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["told", "stopped", "True"]), ran.stderr
