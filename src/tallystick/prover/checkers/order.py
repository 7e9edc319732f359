"""Reordered, state: the rows of each key, one after the other, against a run without faults."""

from __future__ import annotations

from collections import defaultdict

from tallystick.prover.checkers.answer import NO_LAST_READ, Answer
from tallystick.prover.history import History


def reordered(history: History, sink: str) -> Answer | None:
    """Rows of a key that came after one that should follow them. Repeats count as repeated, not as reordered."""
    nature = history.natures[sink]
    if not nature.ordered:
        return None
    if not nature.order_known:
        return None
    last = history.last(sink)
    if last is None:
        return NO_LAST_READ
    expected = [item for epoch in sorted(history.expected[sink]) for item in history.expected[sink][epoch]]
    rank = {item.row: number for number, item in enumerate(expected)}
    wrongs = []
    for place, items in last.new.items():
        highest: dict[str | None, int] = {}
        seen: set[str] = set()
        for item in items:
            if item.row not in rank or item.row in seen:
                continue
            seen.add(item.row)
            if rank[item.row] < highest.get(item.key, -1):
                wrongs.append(f"{place}: {item.row} came after {expected[highest[item.key]].row}")
            highest[item.key] = max(rank[item.row], highest.get(item.key, -1))
    return Answer.of(wrongs)


def state(history: History, sink: str) -> Answer | None:
    """Keys whose results are others than without faults: what state held did not agree with what was written."""
    if not history.keeps_state:
        return None
    delivered = history.delivered(sink)
    if delivered is None:
        return NO_LAST_READ
    last = history.last(sink)
    found: dict[str | None, set[str]] = defaultdict(set)
    for item in last.arrived() if last is not None else ():
        found[item.key].add(item.row)
    wanted: dict[str | None, set[str]] = defaultdict(set)
    for items in history.expected[sink].values():
        for item in items:
            wanted[item.key].add(item.row)
    wrongs = [
        f"key {key}: {min(found[key] - wanted[key])} instead of {min(wanted[key] - found[key], default='nothing')}"
        for key in sorted(found, key=str)
        if found[key] - wanted[key]
    ]
    return Answer.of(wrongs)
