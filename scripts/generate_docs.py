"""Write the generated parts of README.md and docs/: ``python scripts/generate_docs.py``, or ``make docs``.

A page says what it wants between two comments, and everything else in it is written by hand::

    <!-- generated: settings tallystick.Job -->
    …
    <!-- /generated -->

The first word names a function of `PARTS`, the rest is its argument. Facts come from the code; where a table has a
column that only a person can fill in (what a setting means), the page's own text in that column is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs_commands import command_line
from docs_facts import campaigns, contract, errors, guarantees, kill_points, killed, outcomes
from docs_settings import about, methods, settings

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, Callable[[str, str], str]] = {
    "about": about,
    "campaigns": campaigns,
    "command-line": command_line,
    "contract": contract,
    "errors": errors,
    "guarantees": guarantees,
    "kill-points": kill_points,
    "killed": killed,
    "methods": methods,
    "outcomes": outcomes,
    "settings": settings,
}
"""Name -> function of the marker's argument and of what the page has there now."""

_PART = re.compile(
    r"(?P<open><!-- generated: (?P<name>[\w-]+)(?: (?P<argument>[^>]+))? -->\n)"
    r"(?P<now>.*?)"
    r"(?P<close><!-- /generated -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its generated parts as they should be. Changes nothing if they are."""
    return _PART.sub(_fill, text)


def _fill(match: re.Match[str]) -> str:
    name, argument = match["name"], match["argument"] or ""
    if name not in PARTS:
        raise SystemExit(f"unknown generated part {name!r}: needed one of {', '.join(PARTS)}")
    return f"{match['open']}{PARTS[name](argument, match['now']).strip()}\n{match['close']}"


def main() -> int:
    for page in pages():
        before = page.read_text()
        after = filled(before)
        if after != before:
            page.write_text(after)
            print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
