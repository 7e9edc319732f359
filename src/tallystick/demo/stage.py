"""Where the demonstration takes place: what the job reads and writes there, and what a reader finds afterwards.

The campaign, the counting and the view are the same on every stage. To add one, subclass `Stage` and name it in
`job.stage_named`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.records import Json, Mode
from tallystick.sinks import Sink
from tallystick.sources.base import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPS = 4
Update = tuple[str, int]
"""An app and its count of page views so far: one row of the output."""


def view(number: int) -> dict[str, object]:
    """The page view at an offset; always the same one."""
    return {"id": number, "app": f"app{1 + (number * number + number // 3) % APPS}"}


class Stage(ABC):
    """Made by the campaign, and once more by every run of the job, from its `name`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the job's process is told. One word."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What a person is told, such as ``files to files``."""

    @abstractmethod
    def prepare(self, views: int) -> None:
        """Campaign, once: everything that has to be there before the first run."""

    @abstractmethod
    def source(self, views: int, per_epoch: int) -> Source:
        """Job: the page views 0, 1, 2, …; epoch N reads the Nth ``per_epoch`` of them."""

    @abstractmethod
    def count(self, read: DataFrame) -> DataFrame:
        """Job: from what the source gives to the rows that the sink takes: the running count per app."""

    @abstractmethod
    def sink(self, mode: Mode, folder: Path) -> Sink:
        """Job: where the counts of this mode go. ``folder`` is the mode's own."""

    @abstractmethod
    def delivered(self, mode: Mode, folder: Path) -> list[Update]:
        """Campaign, when no job runs: what a reader of the output finds."""

    @abstractmethod
    def offsets(self, read: Json) -> list[tuple[int, int]]:
        """Campaign: the partitions of the source and how far they were read, from a decision in the journal."""
