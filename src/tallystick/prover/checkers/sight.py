"""Dirty, torn, stuck: what readers could see, and when.

Times are compared across processes of one machine: of a file when the kernel wrote it, of a reading when it ended.
Both err in the job's favour: a decision is dated before it takes effect, a sight after it happened.
"""

from __future__ import annotations

from collections import Counter

from tallystick.prover.checkers.answer import NO_LAST_READ, Answer
from tallystick.prover.history import WATCHER, History

CLOCK_S = 0.05
"""Times of files are those of the kernel's last tick."""


def dirty(history: History, sink: str) -> Answer:
    """Rows that were visible before the commit of their epoch was decided, or that went away again."""
    committed: dict[int, float] = {}
    for decided in history.decisions:
        if decided.decision == "COMMIT":
            committed[decided.epoch] = min(decided.when, committed.get(decided.epoch, decided.when))
    seen = history.first_seen(sink)
    wrongs = []
    for epoch, items in history.expected[sink].items():
        for item in items:
            if item.row not in seen:
                continue
            if epoch not in committed:
                wrongs.append(f"epoch {epoch} was never committed, and visible: {item.row}")
            elif seen[item.row] < committed[epoch] - CLOCK_S:
                early_s = committed[epoch] - seen[item.row]
                wrongs.append(f"visible {early_s:.2f} s before epoch {epoch} was decided: {item.row}")
    for read in history.reads:
        if read.sink == sink:
            wrongs += [f"seen, and gone {place}: {row}" for place, rows in read.gone.items() for row in rows]
    if not wrongs and not any(read.sink == sink and read.reader == WATCHER for read in history.reads):
        return Answer.unknown("no reader read along while the job ran")
    return Answer.of(wrongs)


def torn(history: History, sink: str) -> Answer:
    """Epochs of which some rows are visible, in any output, and others of this one are not, when they should be."""
    if history.last(sink) is None:
        return NO_LAST_READ
    delivered = history.delivered(sink) or Counter[str]()
    visible = {name: history.first_seen(name) for name in history.expected}
    wrongs = []
    for epoch, items in history.expected[sink].items():
        others = (
            item.row in visible[name] for name in history.expected for item in history.expected[name].get(epoch, ())
        )
        missing = [item.row for item in items if item.row not in delivered]
        if missing and any(others):
            wrongs.append(f"epoch {epoch}: {len(missing)} of {len(items)} rows are not visible, such as {missing[0]}")
        elif not missing:
            wrongs += _torn_meanwhile(history, sink, epoch)
    return Answer.of(wrongs)


def _torn_meanwhile(history: History, sink: str, epoch: int) -> list[str]:
    """Whole in the end, but a reader that began when the epoch was long over saw a part of it."""
    over, patience_s = history.settled.get(epoch), history.natures[sink].settles_s
    if over is None or patience_s is None:
        return []
    rows = {item.row for item in history.expected[sink][epoch]}
    found: set[str] = set()
    for read in history.reads:
        if read.sink != sink:
            continue
        found |= {item.row for item in read.arrived()} & rows
        if read.began > over + patience_s and found and found != rows:
            return [
                f"epoch {epoch}: {len(rows - found)} of {len(rows)} rows were not visible {read.began - over:.1f} s "
                f"after it was over, such as {min(rows - found)}"
            ]
    return []


def stuck(history: History, sink: str) -> Answer:
    """Epochs that readers had to wait for longer than the limit, counted from Spark's note that they are over.

    Times in which no job ran do not count: what a dead job holds open, the next one ends.
    """
    if history.last(sink) is None:
        return NO_LAST_READ
    seen = history.first_seen(sink)
    wrongs = []
    for epoch, items in history.expected[sink].items():
        shown = [seen[item.row] for item in items if item.row in seen]
        over = history.settled.get(epoch)
        if over is None or not shown:
            continue
        waited_s = max(shown) - over - _overlap_s(history.downtimes(), over, max(shown))
        if waited_s > history.stuck_s:
            wrongs.append(f"epoch {epoch} was visible {waited_s:.1f} s after it was over")
    return Answer.of(wrongs)


def _overlap_s(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    return sum(max(0.0, min(until, end) - max(since, begin)) for since, until in spans)
