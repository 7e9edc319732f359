"""Counting: what was expected against what was delivered, as multisets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Tally:
    """``repeated`` counts deliveries beyond the expected number, ``phantom`` those that nobody expected at all."""

    expected: int
    delivered: int
    lost: int
    repeated: int
    phantom: int

    def __add__(self, other: Tally) -> Tally:
        """Of two outputs together."""
        return Tally(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def exact(self) -> bool:
        return self.lost == self.repeated == self.phantom == 0


def tally(expected: Iterable[Hashable], delivered: Iterable[Hashable]) -> Tally:
    wanted, found = Counter(expected), Counter(delivered)
    surplus = found - wanted
    return Tally(
        expected=wanted.total(),
        delivered=found.total(),
        lost=(wanted - found).total(),
        repeated=sum(count for value, count in surplus.items() if value in wanted),
        phantom=sum(count for value, count in surplus.items() if value not in wanted),
    )
