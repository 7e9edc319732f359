"""The job that the demonstration kills: a page-view stream, a running count per app, JSON lines in a folder.

Run as ``python -m tallystick.demo.job MODE FOLDER VIEWS PER_EPOCH``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import tallystick as ts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPS = 4
SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # A job that lives for seconds spends more on compiling its plan than on running it uncompiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def view(number: int) -> dict[str, object]:
    """The page view at an offset; always the same one."""
    return {"id": number, "app": f"app{1 + (number * number + number // 3) % APPS}"}


def count_views(views: DataFrame) -> DataFrame:
    return views.groupBy("app").count().withColumnRenamed("count", "pv")


def page_views(mode: str, folder: Path, views: int, per_epoch: int) -> ts.Job:
    return ts.Job(
        "app-pv",
        source=ts.sources.Collection(view, length=views, schema="id long, app string", per_epoch=per_epoch),
        steps=count_views,
        output_mode="update",
        sink=ts.sinks.Files(folder / "out", format="json"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
        guarantee=mode,
    )


def expected_updates(views: int, per_epoch: int) -> Iterator[tuple[str, int]]:
    """What a run without faults writes: after each epoch, the new count of every app that was viewed in it."""
    counts: dict[str, int] = {}
    for start in range(0, views, per_epoch):
        touched = [str(view(number)["app"]) for number in range(start, min(views, start + per_epoch))]
        for app in touched:
            counts[app] = counts.get(app, 0) + 1
        yield from ((app, counts[app]) for app in sorted(set(touched)))


def delivered_updates(folder: Path) -> list[tuple[str, int]]:
    """What a reader of the output folder finds."""
    lines = (line for path in sorted((folder / "out").glob("*.json")) for line in path.read_text().splitlines())
    rows = (json.loads(line) for line in lines)
    return [(row["app"], row["pv"]) for row in rows]


def main(arguments: list[str]) -> None:
    mode, folder, views, per_epoch = arguments
    job = page_views(mode, Path(folder), int(views), int(per_epoch))
    job.run(ts.session("tallystick-demo", master="local[2]", conf=SPARK, fast_start=True), available_now=True)


if __name__ == "__main__":
    main(sys.argv[1:])
