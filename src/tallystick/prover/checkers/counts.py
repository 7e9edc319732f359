"""Lost, repeated, phantom: what should be there against what is, as multisets."""

from __future__ import annotations

from collections import Counter

from tallystick.prover.checkers.answer import NO_LAST_READ, Answer
from tallystick.prover.history import History


def lost(history: History, sink: str) -> Answer:
    """Rows that the last reader did not find, as often as they are missing."""
    delivered, wanted = history.delivered(sink), history.wanted(sink)
    if delivered is None:
        return NO_LAST_READ
    missing = wanted - delivered
    if not missing and _ambiguous(wanted):
        return Answer.unknown(_ambiguous(wanted))
    return Answer.of([f"missing: {row}" for row in missing], missing.total())


def repeated(history: History, sink: str) -> Answer:
    """Rows that are there more often than they should be."""
    delivered, wanted = history.delivered(sink), history.wanted(sink)
    if delivered is None:
        return NO_LAST_READ
    surplus = Counter({row: count for row, count in (delivered - wanted).items() if row in wanted})
    if not surplus and _ambiguous(wanted):
        return Answer.unknown(_ambiguous(wanted))
    return Answer.of([f"{delivered[row]} times instead of {wanted[row]}: {row}" for row in surplus], surplus.total())


def phantom(history: History, sink: str) -> Answer:
    """Rows that no run without faults writes."""
    delivered, wanted = history.delivered(sink), history.wanted(sink)
    if delivered is None:
        return NO_LAST_READ
    strange = Counter({row: count for row, count in delivered.items() if row not in wanted})
    return Answer.of([f"nobody sent: {row}" for row in strange], strange.total())


def _ambiguous(wanted: Counter[str]) -> str:
    """A row that is lost once and repeated once leaves no trace if it is expected more than once."""
    row, count = next(iter(wanted.most_common(1)), ("", 0))
    if count <= 1:
        return ""
    return f"rows have no identity: without any fault this one is written {count} times: {row}"
