"""One round as a picture: lives, kills, recoveries, decisions and what readers saw, over time. SVG, no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tallystick.prover.history import KILLED, WATCHER, History
from tallystick.prover.report.result import recovery_spans
from tallystick.records import Json

WIDTH, LEFT, RIGHT = 1100, 110, 20
JOB_Y, FAULT_Y, RECOVERY_Y, EPOCH_Y, ROWS_TOP, ROWS_BOTTOM, AXIS_Y = 30, 62, 88, 118, 146, 206, 222
HEIGHT = 246
TICKS = 10


@dataclass(frozen=True)
class Scale:
    """From a moment to a place on the picture."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        share = (at - self.begin) / max(0.001, self.end - self.begin)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def timeline(history: History) -> str:
    """For a page; every mark has a tooltip."""
    moments = [event["at"] for event in history.events] + [read.at for read in history.reads]
    if not moments:
        return ""
    scale = Scale(min(moments), max(moments))
    parts = [
        *_frame(scale),
        *_lives(history.events, scale),
        *_faults(history.events, scale),
        *_recoveries(history, scale),
        *_epochs(history, scale),
        *_rows(history, scale),
        *_kills(history.events, scale),
    ]
    label = "timeline of a round: lives of the job, kills, recoveries, decisions, rows visible to readers"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _frame(scale: Scale) -> Iterable[str]:
    names = (
        ("lives", JOB_Y), ("other faults", FAULT_Y), ("recovery", RECOVERY_Y), ("epochs", EPOCH_Y),
        ("rows visible", (ROWS_TOP + ROWS_BOTTOM) // 2),
    )  # fmt: skip
    for name, y in names:
        yield f'<text class="name" x="{LEFT - 10}" y="{y + 4}">{name}</text>'
    for number in range(TICKS + 1):
        at = scale.begin + (scale.end - scale.begin) * number / TICKS
        x = scale.x(at)
        yield f'<line class="grid" x1="{x}" y1="14" x2="{x}" y2="{AXIS_Y - 8}"/>'
        yield f'<text class="tick" x="{x}" y="{AXIS_Y + 8}">{at - scale.begin:.0f} s</text>'


def _lives(events: Sequence[Json], scale: Scale) -> Iterable[str]:
    for event in events:
        if event["event"] != "started":
            continue
        over = (each for each in events if each.get("life") == event["life"] and each["event"] in ("ended", "failed"))
        end = next((each["at"] for each in over if each["at"] > event["at"]), scale.end)
        text = f"life {event['life']}, process {event['pid']}, {end - event['at']:.1f} s"
        yield _box("life", scale.x(event["at"]), scale.x(end), JOB_Y - 10, 20, text)
        if scale.x(end) - scale.x(event["at"]) > 24:
            yield f'<text class="in" x="{scale.x(event["at"]) + 9}" y="{JOB_Y + 4}">{event["life"]}</text>'


def _faults(events: Sequence[Json], scale: Scale) -> Iterable[str]:
    for number, event in enumerate(events):
        if event["event"] == "killed" and event["what"] not in KILLED:
            yield _cross(scale.x(event["at"]), FAULT_Y, f"{event['what']} killed")
        if event["event"] != "injected" or event["fault"]["kind"] == "kill-later":
            continue
        healed = (
            each["at"] for each in events[number:] if each["event"] == "healed" and each["fault"] == event["fault"]
        )
        end = next(healed, scale.end)
        details = ", ".join(f"{name} {value}" for name, value in event["fault"].items() if name != "kind")
        yield _box("fault", scale.x(event["at"]), scale.x(end), FAULT_Y - 7, 14, f"{event['fault']['kind']}: {details}")


def _recoveries(history: History, scale: Scale) -> Iterable[str]:
    for begin, end in recovery_spans(history):
        text = f"restart to first new row: {end - begin:.2f} s"
        yield _box("recovery", scale.x(begin), scale.x(end), RECOVERY_Y - 6, 12, text)


def _epochs(history: History, scale: Scale) -> Iterable[str]:
    for decided in history.decisions:
        kind = "commit" if decided.decision == "COMMIT" else "abort"
        x = scale.x(decided.when)
        text = f"epoch {decided.epoch}, generation {decided.generation}: {decided.decision}"
        yield f'<line class="{kind}" x1="{x}" y1="{EPOCH_Y - 9}" x2="{x}" y2="{EPOCH_Y + 9}">{_tip(text)}</line>'
    for epoch, when in history.settled.items():
        place = f'cx="{scale.x(when)}" cy="{EPOCH_Y + 13}"'
        yield f'<circle class="settled" {place} r="2">{_tip(f"epoch {epoch} is over")}</circle>'


def _rows(history: History, scale: Scale) -> Iterable[str]:
    reads = [read for read in history.reads if read.reader == WATCHER]
    total = sum(sum(1 for _ in read.arrived()) for read in reads) or 1
    count, points = 0, [f"{scale.x(scale.begin)},{ROWS_BOTTOM}"]
    for read in sorted(reads, key=lambda read: read.at):
        arrived = sum(1 for _ in read.arrived())
        if arrived:
            points.append(f"{scale.x(read.at)},{_height(count, total)}")
            count += arrived
            points.append(f"{scale.x(read.at)},{_height(count, total)}")
    points.append(f"{scale.x(scale.end)},{_height(count, total)}")
    tip = _tip(f"{count} rows seen by the reader that read all along")
    yield f'<polyline class="rows" points="{" ".join(points)}">{tip}</polyline>'


def _kills(events: Sequence[Json], scale: Scale) -> Iterable[str]:
    for event in events:
        if event["event"] == "killed" and event["what"] in KILLED:
            x, text = scale.x(event.get("when", event["at"])), f"{event['what']} killed: {event['where']}"
            if event["what"] == "driver":
                yield _cross(x, JOB_Y, text)
            else:
                yield f'<circle class="worker" cx="{x}" cy="{JOB_Y}" r="4">{_tip(text)}</circle>'


def _height(count: int, total: int) -> float:
    return round(ROWS_BOTTOM - (ROWS_BOTTOM - ROWS_TOP) * count / total, 1)


def _box(kind: str, x1: float, x2: float, y: float, height: float, text: str) -> str:
    width = max(1.5, round(x2 - x1, 1))
    return f'<rect class="{kind}" x="{x1}" y="{y}" width="{width}" height="{height}" rx="2">{_tip(text)}</rect>'


def _cross(x: float, y: float, text: str) -> str:
    lines = f'<path d="M{x - 5} {y - 5}L{x + 5} {y + 5}M{x - 5} {y + 5}L{x + 5} {y - 5}"/>'
    return f'<g class="killed">{lines}{_tip(text)}</g>'


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"
