"""What a person sees of the demonstration: a live table while it runs, the verdict at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tallystick.demo.campaign import Lane
from tallystick.records import Decision, Json, Mode, Record

_STYLES = {Mode.EXACTLY_ONCE: "bold green", Mode.AT_LEAST_ONCE: "bold yellow", Mode.AT_MOST_ONCE: "bold magenta"}
_LATEST = 6


def live(lanes: Sequence[Lane], elapsed_s: float) -> RenderableType:
    """One row per mode: epochs, the latest decisions, the kills so far."""
    title = f"page views per app, {lanes[0].stage.title}: killed and restarted   {elapsed_s:3.0f} s"
    table = Table(title=title, expand=True)
    for heading in ("mode", "epoch", "latest decisions", "killed at", "now"):
        table.add_column(heading, overflow="fold")
    for lane in lanes:
        records = lane.records()
        newest = max((record.attempt.epoch for record in records), default=None)
        table.add_row(
            Text(lane.mode.value, _STYLES[lane.mode]),
            "-" if newest is None else str(newest),
            _decisions(records),
            Text("\n".join(lane.kills), "red"),
            lane.phase,
        )
    return table


def _decisions(records: Sequence[Record]) -> Text:
    text = Text()
    for record in sorted(records, key=lambda record: (record.attempt.generation, record.attempt.epoch))[-_LATEST:]:
        good = record.decision is Decision.COMMIT
        text.append(f"{record.attempt.epoch}.{record.attempt.generation} ", "dim")
        text.append(f"{record.decision.value} ", "green" if good else "red")
    return text


def verdict(lanes: Sequence[Lane]) -> RenderableType:
    """The three modes side by side, and the last checkpoint of the exactly-once one."""
    title = f"{lanes[0].stage.title}, counted at the end, against a run without faults"
    table = Table(title=title, expand=False)
    table.add_column("mode")
    for heading in ("kills", "expected", "delivered", "lost", "repeated"):
        table.add_column(heading, justify="right")
    for lane in lanes:
        if lane.result is None:
            continue
        found = lane.result
        table.add_row(
            Text(lane.mode.value, _STYLES[lane.mode]),
            str(len(lane.kills)),
            str(found.expected),
            str(found.delivered),
            Text(str(found.lost), "red" if found.lost else "green"),
            Text(str(found.repeated), "red" if found.repeated else "green"),
        )
    exact = next(lane for lane in lanes if lane.mode is Mode.EXACTLY_ONCE)
    return Group(table, Text(), Text(last_checkpoint(exact), "bold"))


def last_checkpoint(lane: Lane) -> str:
    """``chk-N  offset …  pv (app1,…)``: what was read and what was counted, at one line through the job."""
    newest = max(
        (record for record in lane.records() if record.decision is Decision.COMMIT),
        key=lambda record: record.attempt,
    )
    counts: dict[str, int] = {}
    for app, pv in lane.delivered:
        counts[app] = max(pv, counts.get(app, 0))
    [read] = newest.read.offsets
    offsets = " ".join(f"({partition},{offset})" for partition, offset in lane.stage.offsets(read))
    listed = " ".join(f"({app},{pv})" for app, pv in sorted(counts.items()))
    return f"chk-{newest.attempt.epoch}  offset {offsets}  pv {listed}"


def to_json(lanes: Sequence[Lane], duration_s: float) -> Json:
    modes = {}
    for lane in lanes:
        if lane.result is not None:
            modes[lane.mode.value] = {
                "expected": lane.result.expected,
                "delivered": lane.result.delivered,
                "lost": lane.result.lost,
                "repeated": lane.result.repeated,
                "phantom": lane.result.phantom,
                "kills": len(lane.kills),
                "killed_at": lane.kills,
            }
    exact = next(lane for lane in lanes if lane.mode is Mode.EXACTLY_ONCE)
    return {"modes": modes, "checkpoint": last_checkpoint(exact), "duration_s": round(duration_s, 1)}
