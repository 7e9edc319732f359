"""What to do when a job fails: restart strategies, as values that answer one question from the failures so far."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from tallystick.config import duration_s
from tallystick.errors import ConfigError

REMEMBERED = 10_000


@dataclass(frozen=True)
class Failures:
    """What has failed so far, the newest last. Times are of one clock that never jumps; there is at least one.

    ``in_a_row`` counts those since the last epoch that succeeded.
    """

    at_s: tuple[float, ...]
    in_a_row: int


class RestartStrategy(ABC):
    @abstractmethod
    def pause_s(self, failures: Failures) -> float | None:
        """How long to wait before the next start; None to give up."""


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """The first failure ends the job."""

    def pause_s(self, failures: Failures) -> float | None:
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """Try again, always after the same pause. An epoch that succeeds sets the count back to zero."""

    attempts: int = 3
    delay: str = "10s"

    def __post_init__(self) -> None:
        _check_count("FixedDelay", "attempts", self.attempts)
        duration_s(self.delay)

    def pause_s(self, failures: Failures) -> float | None:
        return duration_s(self.delay) if failures.in_a_row <= self.attempts else None


@dataclass(frozen=True)
class ExponentialDelay(RestartStrategy):
    """Try again after a pause that grows with every failure, and begins anew when the job has run well for a while.

    ``jitter`` makes each pause longer or shorter by up to that part of it, by chance, so that jobs that failed
    together do not come back together. Without ``attempts`` it never gives up.
    """

    initial: str = "1s"
    longest: str = "5m"
    factor: float = 2.0
    jitter: float = 0.1
    reset: str = "1h"
    attempts: int | None = None

    def __post_init__(self) -> None:
        if not 0 < duration_s(self.initial) <= duration_s(self.longest):
            raise ConfigError(
                f"ExponentialDelay: initial is {self.initial!r} and longest {self.longest!r}, needed an initial pause "
                "above nothing that is no longer than the longest"
            )
        _check_number("ExponentialDelay", "factor", self.factor, 1.0, 1000.0)
        _check_number("ExponentialDelay", "jitter", self.jitter, 0.0, 1.0)
        duration_s(self.reset)
        if self.attempts is not None:
            _check_count("ExponentialDelay", "attempts", self.attempts)

    def pause_s(self, failures: Failures) -> float | None:
        count = self._since_reset(failures.at_s)
        if self.attempts is not None and count > self.attempts:
            return None
        return self._plain_s(count) * random.uniform(1 - self.jitter, 1 + self.jitter)

    def _since_reset(self, at_s: tuple[float, ...]) -> int:
        """How many failures belong together: between two of them the job was not well for as long as ``reset``."""
        count = 1
        for before_s, now_s in pairwise(at_s):
            well_s = now_s - before_s - self._plain_s(count)
            count = 1 if well_s > duration_s(self.reset) else count + 1
        return count

    def _plain_s(self, count: int) -> float:
        longest_s = duration_s(self.longest)
        pause_s = duration_s(self.initial)
        for _ in range(count - 1):
            if pause_s >= longest_s or self.factor == 1.0:
                break
            pause_s *= self.factor
        return min(pause_s, longest_s)


@dataclass(frozen=True)
class FailureRate(RestartStrategy):
    """Try again as long as there are no more failures within a span of time than allowed."""

    failures: int = 3
    within: str = "5m"
    delay: str = "10s"

    def __post_init__(self) -> None:
        _check_count("FailureRate", "failures", self.failures)
        if duration_s(self.within) <= 0:
            raise ConfigError(f"FailureRate: within is {self.within!r}, needed a span of time such as '5m'")
        duration_s(self.delay)

    def pause_s(self, failures: Failures) -> float | None:
        since_s = failures.at_s[-1] - duration_s(self.within)
        recent = sum(at_s > since_s for at_s in failures.at_s)
        return duration_s(self.delay) if recent <= self.failures else None


class Restarts:
    """The failures of one job as they happen, and what its strategy says to each."""

    def __init__(self, strategy: RestartStrategy, clock: Callable[[], float] = time.monotonic) -> None:
        self.in_a_row = 0
        self._strategy = strategy
        self._clock = clock
        self._at_s: deque[float] = deque(maxlen=REMEMBERED)

    def succeeded(self) -> None:
        """An epoch ended well."""
        self.in_a_row = 0

    def failed(self) -> float | None:
        """The job failed: how long to wait before the next start, or None to give up."""
        self.in_a_row += 1
        self._at_s.append(self._clock())
        return self._strategy.pause_s(Failures(tuple(self._at_s), self.in_a_row))


def _check_count(strategy: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{strategy}: {name} is {value!r}, needed a whole number above 0")


def _check_number(strategy: str, name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{strategy}: {name} is {value!r}, needed a number from {least:g} to {most:g}")
