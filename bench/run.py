"""Run the benchmarks and print JSON, with the machine that they ran on: ``python bench/run.py [NAME…]``."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import applied_memory
import applied_throughput
import bounded
import broadcast_rules
import databases
import databases_memory
import epoch_cost
import kafka_clocks
import kafka_latency
import kafka_slices
import kafka_throughput
import parquet_throughput
import receiver_log
import recovery
import slice_memory
import state_bytes
from machine import machine

import tallystick as ts

WITH_SPARK = {
    "epoch-cost": epoch_cost.measure,
    "parquet": parquet_throughput.measure,
    "postgresql": databases.postgresql,
    "redis": databases.redis,
    "cassandra": applied_throughput.measure_cassandra,
    "opensearch": applied_throughput.measure_opensearch,
    "state-bytes": state_bytes.measure,
    "broadcast-rules": broadcast_rules.measure,
}
OWN_SESSION = {
    "bounded": bounded.measure,
    "memory": slice_memory.measure,
    "databases-memory": databases_memory.measure,
    "applied-memory": applied_memory.measure,
    "recovery": recovery.measure,
    "kafka-throughput": kafka_throughput.measure,
    "kafka-clocks": kafka_clocks.measure,
    "kafka-latency": kafka_latency.measure,
    "kafka-slices": kafka_slices.measure,
    "receiver-log": receiver_log.measure,
}


def main(names: list[str]) -> None:
    wanted = names or [*OWN_SESSION, *WITH_SPARK]
    unknown = set(wanted) - {*OWN_SESSION, *WITH_SPARK}
    if unknown:
        raise SystemExit(
            f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join([*OWN_SESSION, *WITH_SPARK])}"
        )
    results: dict[str, Any] = {"machine": machine(), "runs": []}
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as scratch:
        folder = Path(scratch)
        for name in wanted:
            print(f"running {name}", file=sys.stderr)
            if name in OWN_SESSION:
                results["runs"].append(OWN_SESSION[name](folder / name))
            else:
                spark = ts.session("tallystick-bench", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
                results["runs"].append(WITH_SPARK[name](spark, folder / name))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
