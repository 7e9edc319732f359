"""What is to be seen of a run on a cluster: what was published, which tasks staged it, what Spark went through."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

_PUBLISHED = re.compile(r"part-(?P<epoch>\d+)-(?P<slice>\d+)-(?P<generation>\d+)-(?P<task>\d+)-")


def published_rows(folder: Path) -> list[tuple[str, int]]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    return [(row["key"], row["count"] if "count" in row else row["id"]) for row in map(json.loads, lines)]


def publishers(folder: Path, epoch: int, slice_: int) -> set[str]:
    """The tasks whose files of this slice are published, called as their transactions are."""
    found = filter(None, (_PUBLISHED.match(path.name) for path in (folder / "out").glob("*.json")))
    return {
        f"{match['epoch']}.{match['generation']}-{match['slice']}-{match['task']}"
        for match in found
        if (int(match["epoch"]), int(match["slice"])) == (epoch, slice_)
    }


def reached(folder: Path, step: str, epoch: int, slice_: int) -> set[str]:
    """The tasks that came to this step with this slice."""
    marks = (folder / "marks").glob(f"{epoch:012d}.*-{slice_:06d}-*.{step}")
    return {mark.name.removesuffix(f".{step}") for mark in marks}


def still_staged(folder: Path) -> set[str]:
    """The transactions that were not swept away yet: all that is left of them, or only their folder."""
    return {path.name for path in (folder / "out" / ".tallystick").glob("*/*/*")}


class SparkHistory:
    """Spark's own account of a run, from its event log."""

    def __init__(self, folder: Path) -> None:
        files = sorted((folder / "events").iterdir())
        lines = [line for path in files if path.is_file() for line in path.read_text().splitlines()]
        self._events: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event["Event"] == f"SparkListener{kind}"]

    def task_endings(self) -> Counter[str]:
        """How often tasks ended as: Success, ExceptionFailure, ExecutorLostFailure, FetchFailed, TaskKilled, …"""
        return Counter(str(event["Task End Reason"]["Reason"]) for event in self._all("TaskEnd"))

    def failure_texts(self) -> str:
        reasons = [event["Task End Reason"] for event in self._all("TaskEnd")]
        return "\n".join(str(reason.get("Full Stack Trace", "")) for reason in reasons)

    def speculative_winners(self) -> set[int]:
        """Task ids of second copies that came first."""
        ended = [event for event in self._all("TaskEnd") if event["Task End Reason"]["Reason"] == "Success"]
        return {event["Task Info"]["Task ID"] for event in ended if event["Task Info"]["Speculative"]}

    def stages_run_again(self) -> set[int]:
        submitted = [event["Stage Info"] for event in self._all("StageSubmitted")]
        return {stage["Stage ID"] for stage in submitted if stage["Stage Attempt ID"] > 0}

    def shuffle_map_stages(self) -> set[int]:
        return {event["Stage ID"] for event in self._all("TaskEnd") if event["Task Type"] == "ShuffleMapTask"}

    def executors_lost(self) -> set[str]:
        return {event["Executor ID"] for event in self._all("ExecutorRemoved")}
