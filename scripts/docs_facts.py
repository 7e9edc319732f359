"""Tables of facts that the package keeps as data: guarantees, errors, kill points, outcomes, the sink contract."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs_settings import as_markdown
from docs_tables import code, table, with_meanings

from tallystick import errors as tree
from tallystick.cli.guarantees import all_facts
from tallystick.killpoints import DRIVER_POINTS, POINTS
from tallystick.records import Json, Outcome
from tallystick.sinks import base


def guarantees(argument: str, now: str) -> str:
    """``sources``, ``sinks``, or one connector as ``sinks files``."""
    role, _, name = argument.partition(" ")
    facts = [entry for entry in all_facts()[role] if name in ("", entry["name"])]
    headings = [role[:-1], "guarantee", *(["kind"] if role == "sinks" else []), "mechanism", "conditions"]
    return table(headings, (_guarantee(entry) for entry in facts))


def _guarantee(entry: Json) -> list[str]:
    kind = [entry["kind"]] if "kind" in entry else []
    return [entry["name"], entry["guarantee"], *kind, entry["mechanism"], entry["conditions"] or "–"]


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


def kill_points(argument: str, now: str) -> str:
    rows = ((code(point), "driver" if point in DRIVER_POINTS else "worker") for point in POINTS)
    headings = ("kill point", "reached by", "what a kill here leaves behind, and what the next start does")
    return with_meanings(headings, rows, now)


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
