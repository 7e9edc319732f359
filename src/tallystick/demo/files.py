"""The demonstration with no server: page views from a function, JSON lines in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.demo.stage import Stage, Update, view
from tallystick.records import Json, Mode
from tallystick.sinks import Files
from tallystick.sources import Collection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FilesStage(Stage):
    name = "files"
    title = "into files"

    def prepare(self, views: int) -> None:
        """The source makes its rows up, and the sink its folder."""

    def source(self, views: int, per_epoch: int) -> Collection:
        return Collection(view, length=views, schema="id long, app string", per_epoch=per_epoch)

    def count(self, read: DataFrame) -> DataFrame:
        return read.groupBy("app").count().withColumnRenamed("count", "pv")

    def sink(self, mode: Mode, folder: Path) -> Files:
        return Files(folder / "out", format="json")

    def delivered(self, mode: Mode, folder: Path) -> list[Update]:
        lines = (line for path in sorted((folder / "out").glob("*.json")) for line in path.read_text().splitlines())
        rows = (json.loads(line) for line in lines)
        return [(row["app"], row["pv"]) for row in rows]

    def offsets(self, read: Json) -> list[tuple[int, int]]:
        return [(0, read["offset"])]
