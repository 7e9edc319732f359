"""One output, looked at again and again: what is new, and what is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tallystick.prover.readers import Item


class Sight:
    """What the output showed the last time; nothing at first."""

    def __init__(self) -> None:
        self.noted_at = 0.0
        self._before: Mapping[str, Sequence[Item]] = {}

    def difference(self, now: Mapping[str, Sequence[Item]]) -> tuple[dict[str, Sequence[Item]], dict[str, list[str]]]:
        """What is new, and what is gone. Order within a place counts only for what is new at its end."""
        new: dict[str, Sequence[Item]] = {}
        gone: dict[str, list[str]] = {}
        for place in {**self._before, **now}:
            before, after = self._before.get(place, ()), now.get(place, ())
            if before is after:
                continue
            if tuple(after[: len(before)]) == tuple(before):
                added, removed = list(after[len(before) :]), []
            else:
                added = list((Counter(after) - Counter(before)).elements())
                removed = [item.row for item in (Counter(before) - Counter(after)).elements()]
            if added:
                new[place] = added
            if removed:
                gone[place] = removed
        self._before = dict(now)
        return new, gone
