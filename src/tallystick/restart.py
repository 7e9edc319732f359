"""What to do when an epoch fails: restart strategies, as values that answer one question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tallystick.config import duration_s
from tallystick.errors import ConfigError


class RestartStrategy(ABC):
    @abstractmethod
    def pause_s(self, failures: int) -> float | None:
        """How long to wait before the next start, after so many failures in a row; None to give up."""


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """The first failure ends the job."""

    def pause_s(self, failures: int) -> float | None:
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """Try again, always after the same pause. An epoch that succeeds sets the count back to zero."""

    attempts: int = 3
    delay: str = "10s"

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"FixedDelay: attempts is {self.attempts!r}, needed a whole number above 0")
        duration_s(self.delay)

    def pause_s(self, failures: int) -> float | None:
        return duration_s(self.delay) if failures <= self.attempts else None
