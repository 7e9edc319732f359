"""Tables of facts that the package keeps as data: guarantees, errors, kill points, outcomes, the sink contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from docs_settings import as_markdown
from docs_tables import code, table, with_meanings

from tallystick import errors as tree
from tallystick.cli.guarantees import all_facts
from tallystick.evidence import Note, Total, kept, together, whole
from tallystick.killpoints import DRIVER_POINTS, POINTS, RECEIVER_POINTS
from tallystick.records import Json, Outcome
from tallystick.sinks import base


def guarantees(argument: str, now: str) -> str:
    """``sources``, ``sinks``, or one connector as ``sinks files``."""
    role, _, name = argument.partition(" ")
    facts = [entry for entry in all_facts()[role] if name in ("", entry["name"])]
    kind = ["kind"] if role == "sinks" else []
    headings = [role[:-1], "guarantee", *kind, "killed", "mechanism", "conditions"]
    return table(headings, (_guarantee(entry) for entry in facts))


def _guarantee(entry: Json) -> list[str]:
    kind = [entry["kind"]] if "kind" in entry else []
    killed = str(Total(**entry["killed"]))
    return [entry["name"], entry["guarantee"], *kind, killed, entry["mechanism"], entry["conditions"] or "–"]


def killed(argument: str, now: str) -> str:
    """All that is kept as evidence, in one line."""
    found = whole()
    cells = [f"{count}" + (f" ({looked})" if looked < found.kills else "") for looked, count in found.counts.values()]
    counts = table(["killed with SIGKILL", *found.counts], [[str(found.kills), *cells]])
    told = "Of jobs that promise exactly-once. In brackets: after how many of the kills it was looked for, if not all."
    if not found.recoveries_s:
        return f"{counts}\n\n{told}"
    times = f"median {median(found.recoveries_s):.1f} s, longest {max(found.recoveries_s):.1f} s"
    return (
        f"{counts}\n\n{told}\nFrom the restart of a killed driver to the first new row that a reader saw: {times}, of "
        f"{len(found.recoveries_s)}, on two busy cores."
    )


def campaigns(argument: str, now: str) -> str:
    """Every campaign that is kept as evidence, job by job."""
    headings = ("from", "to", "kills", "lost", "repeated", "gathered", "by")
    return table(headings, (row for campaign in kept().values() for row in _jobs(campaign)))


def _jobs(campaign: Json) -> Iterator[list[str]]:
    for note in map(Note.from_json, campaign["notes"]):
        found = together(note.sinks.values() if note.sinks else note.sources.values())
        names = [", ".join(role) or missing for role, missing in ((note.sources, "–"), (note.sinks, "receiver log"))]
        counts = [str(note.kills), str(found.lost), str(found.repeated)]
        yield [*names, *counts, campaign["date"], code(campaign["command"])]


def errors(argument: str, now: str) -> str:
    rows = ((_indented(error, depth), _text(error.__doc__)) for error, depth in error_tree(tree.TallystickError))
    return with_meanings(("error", "meaning", "what to do"), rows, now)


def error_tree(root: type[tree.TallystickError], depth: int = 0) -> Iterator[tuple[type[tree.TallystickError], int]]:
    """Every error of the package below a root, parents before children, in the order of their file."""
    yield root, depth
    for child in root.__subclasses__():
        if child.__module__.startswith("tallystick."):
            yield from error_tree(child, depth + 1)


def _indented(error: type[tree.TallystickError], depth: int) -> str:
    return "&emsp;" * depth + code(error.__name__)


LEFT_BEHIND = "what a kill here leaves behind, and what the next start does"


def kill_points(argument: str, now: str) -> str:
    """Those of a job, or with ``receiver`` those of a receiver."""
    if argument == "receiver":
        return with_meanings(("kill point", LEFT_BEHIND), ((code(point),) for point in RECEIVER_POINTS), now)
    rows = ((code(point), "driver" if point in DRIVER_POINTS else "worker") for point in POINTS)
    return with_meanings(("kill point", "reached by", LEFT_BEHIND), rows, now)


def outcomes(argument: str, now: str) -> str:
    rows = ((code(f"Outcome.{outcome.name}"), _class(outcome)) for outcome in Outcome)
    return with_meanings(("outcome", "for the protocol", "say it when"), rows, now)


def _class(outcome: Outcome) -> str:
    if outcome.confirmed:
        return "confirmed"
    return "asked again" if outcome.unsettled else "final"


def contract(argument: str, now: str) -> str:
    """The table of verbs at the top of the contract's own module."""
    found = re.findall(r"^`(\w+)` +(executor|driver) +(.+)$", base.__doc__ or "", re.MULTILINE)
    return table(("verb", "where", "when"), ((code(verb), where, as_markdown(when)) for verb, where, when in found))


def _text(docstring: str | None) -> str:
    return " ".join(as_markdown(docstring or "").split())
