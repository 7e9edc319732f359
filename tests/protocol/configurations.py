"""How far each mode is explored. Run this file to see the numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from explore import Stats, explore
from invariants import PROMISES
from steps import Bounds, Budget
from world import Rules

from tallystick.protocol import MODES
from tallystick.records import Mode

ONE_SINK = Rules((("a", 0), ("a", 1)))
TWO_SINKS = Rules((("a", 0), ("b", 0)))


@dataclass(frozen=True)
class Configuration:
    """Two epochs, three generations, two of them alive at once, unless the bounds say otherwise."""

    mode: Mode
    bounds: Bounds
    rules: Rules = ONE_SINK

    def explore(self) -> Stats:
        return explore(MODES[self.mode], self.bounds, PROMISES[self.mode], self.rules)


def _bounds(expiries: int = 0, unknowns: int = 0, failures: int = 0, late: int = 0) -> Bounds:
    return Bounds(budget=Budget(expiries, unknowns, failures, late))


EXACTLY, AT_LEAST, AT_MOST = Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE

QUICK = {
    "exactly-once, two expiries": Configuration(EXACTLY, _bounds(expiries=2)),
    "exactly-once, unknown": Configuration(EXACTLY, _bounds(unknowns=1)),
    "exactly-once, failed prepare": Configuration(EXACTLY, _bounds(failures=1)),
    "exactly-once, late task": Configuration(EXACTLY, _bounds(late=1)),
    "exactly-once, forgetful sinks": Configuration(EXACTLY, _bounds(), replace(ONE_SINK, forgetful=True)),
    "exactly-once, slow starts": Configuration(EXACTLY, Bounds(budget=Budget(expiries=1), slow_starts=True)),
    "exactly-once, two sinks, expiry and failed prepare": Configuration(
        EXACTLY, _bounds(expiries=1, failures=1), TWO_SINKS
    ),
    "at-least-once, expiry": Configuration(AT_LEAST, _bounds(expiries=1)),
    "at-least-once, unknown": Configuration(AT_LEAST, _bounds(unknowns=1), TWO_SINKS),
    "at-most-once, expiry and failed prepare": Configuration(AT_MOST, _bounds(expiries=1, failures=1)),
    "at-most-once, unknown": Configuration(AT_MOST, _bounds(unknowns=1), TWO_SINKS),
}
SLOW = {
    "exactly-once, expiry and unknown": Configuration(EXACTLY, _bounds(expiries=1, unknowns=1)),
    "exactly-once, three alive, slow starts": Configuration(EXACTLY, Bounds(alive=3, slow_starts=True)),
    "exactly-once, four generations": Configuration(EXACTLY, Bounds(generations=4)),
    "exactly-once, three epochs": Configuration(EXACTLY, Bounds(epochs=3)),
    "exactly-once, failed prepare and late task": Configuration(EXACTLY, _bounds(failures=1, late=1)),
    "exactly-once, two sinks, expiry and late task": Configuration(EXACTLY, _bounds(expiries=1, late=1), TWO_SINKS),
    "at-least-once, expiry and unknown": Configuration(AT_LEAST, _bounds(expiries=1, unknowns=1)),
    "at-most-once, failed prepare and late task": Configuration(AT_MOST, _bounds(failures=1, late=1)),
}


if __name__ == "__main__":
    for name, configuration in (QUICK | SLOW).items():
        print(f"{name}: {configuration.explore()}", flush=True)
