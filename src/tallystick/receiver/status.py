"""What a receiver says about itself, in a file that anybody can read: ``status.json`` in the folder of its log.

The file is replaced as a whole, about once a second. It is for people and for the start of a job; nothing that is
promised rests on it, so it is not synced. Counts go on over restarts.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tallystick.receiver.disk import Lock, replace_file
from tallystick.records import Json

EVERY_S = 1.0


class Status:
    """The receiver's own side. ``counts`` are those of all runs together."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "status.json"
        self.counts: Counter[str] = Counter(read_status(folder).get("counts", {}))
        self._of_inlet: dict[str, int] = {}
        self._state = "starting"
        self._written_s = 0.0

    def count_inlet(self, counts: Mapping[str, int]) -> None:
        """An inlet counts from its own start: only what is new is added."""
        for name, value in counts.items():
            self.counts[name] += value - self._of_inlet.get(name, 0)
            self._of_inlet[name] = value

    def say(self, state: str, facts: Mapping[str, Json], error: str | None = None) -> None:
        """Write it if the state has changed or it is time to."""
        now = time.monotonic()
        if state == self._state and error is None and now - self._written_s < EVERY_S:
            return
        self._state, self._written_s = state, now
        text = {"state": state, "pid": os.getpid(), "at": round(time.time(), 3), **facts, "counts": dict(self.counts)}
        if error is not None:
            text["error"] = error
        replace_file(self._path, json.dumps(text, indent=1).encode() + b"\n", synced=False)


def read_status(folder: Path) -> dict[str, Json]:
    """The last words of the log's receiver; empty if it never ran."""
    try:
        found = json.loads((folder / "status.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_received(folder: Path) -> bool:
    """Whether a receiver of this log lives now, on this machine."""
    return Lock(folder / "lock").held()
