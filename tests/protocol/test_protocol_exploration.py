"""Every reachable state of each delivery mode, within bounds (essay 1 to 9 of `protocol/epoch.py`)."""

from __future__ import annotations

import pytest
from configurations import AT_LEAST, AT_MOST, QUICK, SLOW
from steps import Bounds

from tallystick.records import Mode


@pytest.mark.parametrize("name", QUICK)
def test_promises_hold_in_every_reachable_state(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _explore(name, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_promises_hold_further_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _explore(name, capsys)


def test_the_bounds_are_the_ones_that_were_promised() -> None:
    for configuration in QUICK.values():
        bounds, promised = configuration.bounds, Bounds()
        assert (bounds.epochs, bounds.generations, bounds.alive) == (promised.epochs, promised.generations, 2)
    faults = [configuration.bounds.budget for configuration in QUICK.values()]
    assert all(map(max, zip(*faults, strict=True))), "each kind of fault happens in some configuration"


def _explore(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The weaker modes must reach what they do not promise: otherwise the exploration could not see it."""
    configuration = (QUICK | SLOW)[name]
    stats = configuration.explore()
    with capsys.disabled():
        print(f"\n{name}: {stats}")
    assert stats.states > 10_000
    assert stats.closures > 100
    allowed: dict[Mode, set[str]] = {AT_LEAST: {"twice", "undone"}, AT_MOST: {"lost"}}
    assert set(stats.seen) == allowed.get(configuration.mode, set())
