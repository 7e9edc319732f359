"""How much memory a slice writer of PostgreSQL and Redis takes, for a small epoch and for one ten times as large."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import tallystick as ts
from tallystick.records import Attempt
from tallystick.servers import PostgreSQL, Redis
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.postgresql.client import connect, parameters_of

BATCH_ROWS = 10_000
BATCHES = (30, 300)


def write_slice(kind: str, address: str, batches: int) -> None:
    sink: Any = ts.sinks.PostgreSQL(address, "memory") if kind == "postgresql" else ts.sinks.Redis(address)
    sink.check(JobContext())
    transaction = sink.begin_transaction(SliceContext("memory", Attempt(0, 1), kind, 0, batches))
    for number in range(batches):
        ids = range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
        texts = [f"row number {value}" for value in ids]
        sink.write(transaction, pa.RecordBatch.from_pydict({"key": list(map(str, ids)), "value": texts}))
    sink.rollback(transaction)
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def measure(folder: Path) -> dict[str, Any]:
    peaks: dict[str, dict[str, int]] = {"postgresql": {}, "redis": {}}
    with PostgreSQL(folder / "postgresql") as postgresql, Redis(folder / "redis") as redis:
        admin = connect(parameters_of(postgresql.address, {}))
        admin.execute("CREATE TABLE memory (key text, value text)")
        admin.close()
        for kind, address in (("postgresql", postgresql.address), ("redis", redis.address)):
            for batches in BATCHES:
                command = [sys.executable, __file__, kind, address, str(batches)]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                peaks[kind][f"{batches * BATCH_ROWS} rows"] = json.loads(printed)["peak_mb"]
    return {"work": "peak memory of a process that writes one slice", "peak_mb": peaks}


if __name__ == "__main__":
    write_slice(sys.argv[1], sys.argv[2], int(sys.argv[3]))
