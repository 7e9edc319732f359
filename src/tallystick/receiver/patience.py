"""How long to try again while a server is away."""

from __future__ import annotations

import time

from tallystick.errors import SourceError


class Patience:
    """Counts the time since a server last answered. Pauses double, from a tenth of a second to ten."""

    FIRST_S = 0.1
    LONGEST_S = 10.0

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._away_since_s: float | None = None
        self._pause_s = self.FIRST_S
        self._next_s = 0.0

    def answered(self) -> None:
        self._away_since_s = None
        self._pause_s = self.FIRST_S

    def due(self) -> bool:
        """Whether it is time for another try."""
        return time.monotonic() >= self._next_s

    def wait(self, longest_s: float) -> None:
        """For the next try, or so long."""
        time.sleep(max(0.0, min(longest_s, self._next_s - time.monotonic())))

    def failed(self, what: str, cause: BaseException) -> None:
        """A try has failed. `SourceError` if it has been too long."""
        now = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now
        if now - self._away_since_s > self._limit_s:
            raise SourceError(
                f"{what} has not answered for {self._limit_s:g} s: {type(cause).__name__}: {cause}. what was received "
                "is in the log; start again when it is back, or raise patience="
            ) from cause
        self._next_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self.LONGEST_S)
