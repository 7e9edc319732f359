"""How much memory a slice writer takes, for a small epoch and for one ten and a hundred times as large."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import tallystick as ts
from tallystick.records import Attempt
from tallystick.sinks.base import JobContext, SliceContext

BATCH_ROWS = 10_000
BATCHES = (50, 500, 5000)


def write_slice(folder: str, batches: int) -> None:
    sink = ts.sinks.Files(folder)
    sink.check(JobContext())
    transaction = sink.begin_transaction(SliceContext("memory", Attempt(0, 1), "files", 0, batches))
    for number in range(batches):
        ids = list(range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS))
        rows = pa.RecordBatch.from_pydict({"id": ids, "text": [f"row number {value}" for value in ids]})
        sink.write(transaction, rows)
    sink.rollback(transaction)
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def measure(folder: Path) -> dict[str, Any]:
    peaks = {}
    for batches in BATCHES:
        command = [sys.executable, __file__, str(folder / "memory"), str(batches)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peaks[f"{batches * BATCH_ROWS} rows"] = json.loads(printed)["peak_mb"]
    return {"work": "peak memory of a process that writes one Parquet slice", "peak_mb": peaks}


if __name__ == "__main__":
    write_slice(sys.argv[1], int(sys.argv[2]))
