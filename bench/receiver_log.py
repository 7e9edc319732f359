"""How fast a receiver makes small records durable: appended and synced in group commits, and through a real socket.

``synced one by one`` is what the same disk gives without group commit: the peer of this measurement.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tallystick.receiver import LogReader, LogSettings, ReceiverLog, Record
from tallystick.receiver.process import ReceiverSpec, ensure_received, stop_receiver
from tallystick.servers.ports import LOOPBACK, free_ports

RECORDS = 400_000
ONE_BY_ONE = 1_000
VALUE_BYTES = 100
PER_COMMIT = 2_000
PATIENCE_S = 120

SENDER = """
import socket, sys
line = b"x" * (int(sys.argv[2]) - 1) + b"\\n"
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
    for _ in range(int(sys.argv[3]) // 1000):
        link.sendall(line * 1000)
"""


def appended(folder: Path, per_commit: int, count: int) -> float:
    """Records per second, each with an id of its own that is looked up in the window."""
    shutil.rmtree(folder, ignore_errors=True)
    value = b"x" * VALUE_BYTES
    with ReceiverLog(folder, LogSettings()) as log:
        started = time.perf_counter()
        for first in range(0, count, per_commit):
            records = [Record(value, f"id-{number}", 1) for number in range(first, first + per_commit)]
            log.append([record for record in records if log.ids.is_new(record.id)])
        return count / (time.perf_counter() - started)


def through_socket(folder: Path) -> float:
    """Records per second from the first byte sent to the last record durable, lines over loopback."""
    shutil.rmtree(folder, ignore_errors=True)
    [port] = free_ports(1)
    inlet = {
        "kind": "socket",
        "framing": "lines",
        "listen": [LOOPBACK, port],
        "connect": None,
        "encoding": "utf-8",
        "max_record_bytes": 1 << 20,
    }
    ensure_received(ReceiverSpec(str(folder), inlet), os.getpid())
    try:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", SENDER, str(port), str(VALUE_BYTES), str(RECORDS)], check=True)
        reader = LogReader(folder)
        while reader.durable < RECORDS:
            if time.perf_counter() - started > PATIENCE_S:
                raise SystemExit(f"only {reader.durable} of {RECORDS} records are durable")
            time.sleep(0.005)
        return RECORDS / (time.perf_counter() - started)
    finally:
        stop_receiver(folder)


def read_back(folder: Path) -> float:
    reader = LogReader(folder)
    started = time.perf_counter()
    count = sum(1 for _ in reader.records(0, reader.durable))
    return count / (time.perf_counter() - started)


def measure(folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    grouped = appended(folder / "grouped", PER_COMMIT, RECORDS)
    single = appended(folder / "single", 1, ONE_BY_ONE)
    received = through_socket(folder / "socket")
    return {
        "work": f"{RECORDS} records of {VALUE_BYTES} bytes into a receiver log",
        "records_per_s": {
            f"group commits of {PER_COMMIT}": round(grouped),
            "synced one by one": round(single),
            "lines through a socket": round(received),
            "read back": round(read_back(folder / "socket")),
        },
        "ratio_to_one_by_one": round(grouped / single, 1),
    }
