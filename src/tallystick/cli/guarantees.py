"""``tallystick guarantees``: every source and sink, what it promises, by what, and on which conditions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tallystick.cli.console import out, print_json, table
from tallystick.cli.options import AsJson
from tallystick.records import Json

if TYPE_CHECKING:
    from types import ModuleType

    from rich.table import Table

EXAMPLES = "Examples: tallystick guarantees · tallystick guarantees --json"


def guarantees(as_json: AsJson = False) -> None:
    """List every source and sink with its guarantee, its mechanism and its conditions."""
    facts = all_facts()
    if as_json:
        print_json(facts)
        return
    console = out()
    for role in ("sources", "sinks"):
        console.print(_as_table(role, facts[role]))


def all_facts() -> Json:
    """What the exported classes say about themselves; a connector that is not there is not listed."""
    from tallystick import sinks, sources

    return {"sources": _facts_of(sources), "sinks": _facts_of(sinks)}


def _facts_of(package: ModuleType) -> list[Json]:
    exported = (getattr(package, name) for name in package.__all__)
    # The contracts themselves are exported too: they declare that there are facts, and have none.
    found = {entry.facts for entry in exported if isinstance(entry, type) and hasattr(entry, "facts")}
    return [_plain(asdict(facts)) for facts in sorted(found, key=lambda facts: facts.name)]


def _plain(facts: dict[str, Json]) -> Json:
    return {name: getattr(value, "value", value) for name, value in facts.items()}


def _as_table(role: str, facts: list[Json]) -> Table:
    made = table(role, "guarantee", "mechanism and conditions")
    for entry in facts:
        kind = f"\n[dim]{entry['kind']}[/]" if "kind" in entry else ""
        conditions = f"\n[dim]if: {entry['conditions']}[/]" if entry["conditions"] else ""
        made.add_row(entry["name"], entry["guarantee"] + kind, entry["mechanism"] + conditions)
    return made
