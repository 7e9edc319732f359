"""``tallystick guarantees``: every source and sink, what it promises, by what, and on which conditions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tallystick.cli.console import out, print_json, table
from tallystick.cli.options import AsJson
from tallystick.evidence import Total, behind
from tallystick.records import Json

if TYPE_CHECKING:
    from types import ModuleType

    from rich.table import Table

EXAMPLES = "Examples: tallystick guarantees · tallystick guarantees --json"


def guarantees(as_json: AsJson = False) -> None:
    """List every source and sink with its guarantee, the kills behind it, its mechanism and its conditions."""
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

    return {"sources": _facts_of(sources, "sources"), "sinks": _facts_of(sinks, "sinks")}


def _facts_of(package: ModuleType, role: str) -> list[Json]:
    exported = (getattr(package, name) for name in package.__all__)
    # The contracts themselves are exported too: they declare that there are facts, and have none.
    found = {entry.facts for entry in exported if isinstance(entry, type) and hasattr(entry, "facts")}
    ordered = sorted(found, key=lambda facts: facts.name)
    return [{**_plain(asdict(facts)), "killed": asdict(behind(role, facts.name))} for facts in ordered]


def _plain(facts: dict[str, Json]) -> Json:
    return {name: getattr(value, "value", value) for name, value in facts.items() if value is not None}


def _as_table(role: str, facts: list[Json]) -> Table:
    made = table(role, "guarantee", "killed", "mechanism and conditions")
    for entry in facts:
        kind = f"\n[dim]{entry['kind']}[/]" if "kind" in entry else ""
        if "from_receipt" in entry:
            kind = f"\n[dim]from receipt {entry['from_receipt']}[/]"
        conditions = f"\n[dim]if: {entry['conditions']}[/]" if entry["conditions"] else ""
        killed = str(Total(**entry["killed"])).replace(": ", "\n").replace(", ", "\n")
        made.add_row(entry["name"], entry["guarantee"] + kind, killed, entry["mechanism"] + conditions)
    return made
