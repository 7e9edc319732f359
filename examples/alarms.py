"""Readings of sensors -> alarms above a limit, where the limits themselves come as a stream and change while it runs.

    tallystick run examples/alarms.py --available-now

Readings are JSON files in ``ALARMS/readings`` (default: a folder ``alarms`` here), such as
``{"sensor": "s1", "value": 21.5}``; limits are files in ``limits`` beside it, such as ``{"sensor": "s1", "high": 20}``.
A limit of null takes the sensor's limit away. Every epoch sees one set of limits, and the same one if it is done again:
kill it whenever you like, run it again, and each alarm appears exactly once, judged by the limits of its epoch.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame

import tallystick as ts

FOLDER = Path(os.environ.get("ALARMS", "alarms"))

limits = ts.state.Broadcast(
    "limits",
    ts.sources.Files(FOLDER / "limits", format="json", schema="sensor string, high double", max_files_per_epoch=1),
    key="sensor",
    remove="high is null",
)


def alarms(readings: DataFrame) -> DataFrame:
    return limits.join(readings).where("value > high")


job = ts.Job(
    "alarms",
    source=ts.sources.Files(
        FOLDER / "readings", format="json", schema="sensor string, value double", max_files_per_epoch=1
    ),
    broadcast=limits,
    steps=alarms,
    sink=ts.sinks.Files(FOLDER / "alarms", format="json"),
    checkpoint=ts.Checkpoint(FOLDER / "checkpoint", interval="1s"),
    restart=ts.ExponentialDelay("1s", "1m"),
)
