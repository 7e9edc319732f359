"""How long the steps of an epoch take, for people: the protocol never looks at it."""

from __future__ import annotations

import time
from typing import Any


class StepClock:
    """Wall time for people, durations from a clock that never jumps back."""

    def __init__(self) -> None:
        self._started_at = time.time()
        self._started = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self._laps[step] = self._laps.get(step, 0.0) + now - self._last
        self._last = now

    def facts(self) -> dict[str, Any]:
        durations = {f"{step}_s": round(seconds, 4) for step, seconds in self._laps.items()}
        return {"at": round(self._started_at, 3), "until_decision_s": round(self._last - self._started, 4), **durations}

    def after_decision(self) -> dict[str, Any]:
        """When all is over: the steps that the record of the epoch could not know."""
        steps = {f"{step}_s": round(self._laps[step], 4) for step in ("decide", "commit") if step in self._laps}
        return {**steps, "total_s": round(self._last - self._started, 4)}
