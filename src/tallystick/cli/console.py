"""Where output goes: what was asked for on standard output, everything else on standard error.

Consoles are made when they are needed, because rich costs time that ``--help`` of a shell completion has not got.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from tallystick.records import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def out() -> Console:
    """For what the command is asked for."""
    from rich.console import Console

    return Console(highlight=False)


def err() -> Console:
    """For progress, warnings and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """The one look of all tables: no frames, numbers to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def print_json(value: Json) -> None:
    """The last thing on standard output; plain, so that a pipe can read it."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def counted(number: int, noun: str) -> str:
    """``1 epoch``, ``1,200 epochs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def for_people(seconds: float | None) -> str:
    """A duration in few characters: ``0.31 s``, ``2 m 5 s``, ``3 h 2 m``."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
