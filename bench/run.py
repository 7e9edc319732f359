"""Run the benchmarks and print JSON, with the machine that they ran on: ``python bench/run.py [NAME…]``."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import bounded
import epoch_cost
import parquet_throughput
import slice_memory
from machine import machine

import tallystick as ts

WITH_SPARK = {"epoch-cost": epoch_cost.measure, "parquet": parquet_throughput.measure}
WITHOUT = {"bounded": bounded.measure, "memory": slice_memory.measure}


def main(names: list[str]) -> None:
    wanted = names or [*WITHOUT, *WITH_SPARK]
    unknown = set(wanted) - {*WITHOUT, *WITH_SPARK}
    if unknown:
        raise SystemExit(
            f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join([*WITHOUT, *WITH_SPARK])}"
        )
    results: dict[str, Any] = {"machine": machine(), "runs": []}
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as scratch:
        folder = Path(scratch)
        for name in wanted:
            print(f"running {name}", file=sys.stderr)
            if name in WITHOUT:
                results["runs"].append(WITHOUT[name](folder / name))
            else:
                spark = ts.session("tallystick-bench", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
                results["runs"].append(WITH_SPARK[name](spark, folder / name))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
