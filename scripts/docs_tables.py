"""Markdown tables: written from rows, and read back to keep what a person wrote in their last column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MISSING = "**not documented**"
"""Stands where a person has to write something. A test finds it."""
ESCAPED_BAR = "\\|"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def last_column(markdown: str) -> dict[str, str]:
    """The last cell of each row of a table, by its first cell."""
    kept: dict[str, str] = {}
    for line in markdown.splitlines():
        cells = [cell.strip().replace(ESCAPED_BAR, "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) >= 2:
            kept[cells[0]] = cells[-1]
    return kept


def with_meanings(
    headings: Sequence[str], rows: Iterable[Sequence[str]], now: str, known: Mapping[str, str] | None = None
) -> str:
    """A table whose last column is what is known from the code, else what the page says now."""
    written = {**last_column(now), **(known or {})}
    return table(headings, ([*row, written.get(row[0], MISSING)] for row in rows))
