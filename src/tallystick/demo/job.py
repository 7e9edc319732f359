"""The job that the demonstration kills: page views, a running count per app, on one of the stages.

Run as ``python -m tallystick.demo.job STAGE MODE FOLDER VIEWS PER_EPOCH``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import tallystick as ts
from tallystick.demo.stage import Stage, Update, view
from tallystick.errors import ConfigError
from tallystick.spark.faststart import SHORT_JOB

SPARK = SHORT_JOB


def page_views(stage: Stage, mode: ts.Mode, folder: Path, views: int, per_epoch: int) -> ts.Job:
    return ts.Job(
        "app-pv",
        source=stage.source(views, per_epoch),
        steps=stage.count,
        output_mode="update",
        sink=stage.sink(mode, folder),
        checkpoint=ts.Checkpoint(checkpoint_of(folder), interval="0s"),
        guarantee=mode.value,
    )


def checkpoint_of(folder: Path) -> Path:
    return folder / "checkpoint"


def expected_updates(views: int, per_epoch: int) -> Iterator[Update]:
    """What a run without faults writes: after each epoch, the new count of every app that was viewed in it."""
    counts: dict[str, int] = {}
    for start in range(0, views, per_epoch):
        touched = [str(view(number)["app"]) for number in range(start, min(views, start + per_epoch))]
        for app in touched:
            counts[app] = counts.get(app, 0) + 1
        yield from ((app, counts[app]) for app in sorted(set(touched)))


def stage_named(name: str) -> Stage:
    """The stage that another process made: by its `Stage.name`."""
    kind, _, address = name.partition("@")
    if kind == "kafka":
        from tallystick.demo.kafka import KafkaStage

        return KafkaStage(address)
    if name == "files":
        from tallystick.demo.files import FilesStage

        return FilesStage()
    raise ConfigError(f"there is no stage {name!r} for the demonstration: needed files or kafka@HOST:PORT")


def main(arguments: list[str]) -> None:
    stage, mode, folder, views, per_epoch = arguments
    job = page_views(stage_named(stage), ts.Mode(mode), Path(folder), int(views), int(per_epoch))
    spark = ts.session("tallystick-demo", "local[2]", SPARK, fast_start=True, jvm_parts=job.jvm_parts)
    job.run(spark, available_now=True)


if __name__ == "__main__":
    main(sys.argv[1:])
