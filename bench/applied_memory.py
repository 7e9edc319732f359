"""Peak memory of a worker that applies one slice to Cassandra and to OpenSearch, small slices against large ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import tallystick as ts
from tallystick.servers import Cassandra, OpenSearch
from tallystick.testing.sinks import context

BATCH_ROWS = 10_000
ROWS = {"cassandra": (10_000, 100_000), "opensearch": (20_000, 400_000)}


def batches(kind: str, rows: int) -> Iterator[pa.RecordBatch]:
    """One at a time, as they are mapped from a staged file."""
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, start + BATCH_ROWS)
        if kind == "cassandra":
            yield pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64()), "name": ["x" * 100] * BATCH_ROWS})
        else:
            document = [f'{{"id":{n},"name":"{"x" * 100}"}}' for n in numbers]
            yield pa.RecordBatch.from_pydict(
                {"id": list(map(str, numbers)), "document": document, "not_finite": [False] * BATCH_ROWS}
            )


def apply(kind: str, address: str, rows: int) -> int:
    """In a process of its own: the most memory that it ever had, in MB."""
    import resource

    sink = ts.sinks.Cassandra(address, "bench.m") if kind == "cassandra" else ts.sinks.OpenSearch(address, "m", "id")
    sink.check(ts.sinks.JobContext())
    sink.apply(context(), batches(kind, rows))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measure(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"work": "one slice of rows of about 100 bytes, peak memory of its process in MB"}
    with Cassandra(folder / "c") as tables, OpenSearch(folder / "o") as indices:
        session = ts.sinks.Cassandra(tables.address, "bench.m").connection.open()
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE bench.m (id bigint PRIMARY KEY, name text)", timeout=60)
        session.cluster.shutdown()
        for kind, server in (("cassandra", tables), ("opensearch", indices)):
            for rows in ROWS[kind]:
                command = [sys.executable, __file__, kind, server.address, str(rows)]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
                found[f"{kind}_{rows}_rows_mb"] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    kind, address, rows = sys.argv[1:]
    print(apply(kind, address, int(rows)))
