"""The exploration is worth what it convicts: each protocol and world of `broken.py` has a reachable violation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broken import CONVICTIONS
from configurations import EXACTLY, ONE_SINK, QUICK
from explore import explore
from invariants import ALL, ViolationError
from steps import Bounds


@pytest.mark.parametrize("name", CONVICTIONS)
def test_what_is_broken_on_purpose_is_convicted(name: str) -> None:
    case = CONVICTIONS[name]
    with pytest.raises(ViolationError) as caught:
        explore(case.protocol, case.bounds, frozenset({case.invariant}), case.rules)
    assert caught.value.invariant == case.invariant
    assert str(caught.value).count("\n") == len(caught.value.trace), "one readable line per step"
    assert "generation 1 is claimed, first epoch 0" in caught.value.trace


def test_every_invariant_convicts_something() -> None:
    assert {case.invariant for case in CONVICTIONS.values()} == ALL


@pytest.mark.parametrize("name", CONVICTIONS)
def test_the_real_protocol_is_explored_at_least_as_far(name: str) -> None:
    """What is convicted is the breakage, not the bounds: `test_protocol_exploration` acquits the real one there."""
    explored = [c.bounds for c in QUICK.values() if c.mode is EXACTLY and c.rules == ONE_SINK]
    assert any(_covers(bounds, CONVICTIONS[name].bounds) for bounds in explored)


def _covers(wide: Bounds, narrow: Bounds) -> bool:
    same_shape = replace(wide, budget=narrow.budget) == narrow
    return same_shape and all(more >= less for more, less in zip(wide.budget, narrow.budget, strict=True))
