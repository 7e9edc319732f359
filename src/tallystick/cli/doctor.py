"""``tallystick doctor``: does this machine have what jobs need, and if not, what to do."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tallystick.cli.console import out, print_json, table
from tallystick.cli.options import AsJson

EXAMPLES = "Examples: tallystick doctor · tallystick doctor --json"
_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}


def doctor(as_json: AsJson = False) -> None:
    """Check Java, Python, Spark, memory, disk, permissions, ports and clock. Exit status 1 if something fails."""
    from rich.markup import escape

    from tallystick.cli.checks import examine

    found = examine()
    failed = [check.name for check in found if check.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    else:
        made = table("", "check", "found")
        for check in found:
            advice = f"\n[bold]{escape(check.advice)}[/]" if check.advice else ""
            made.add_row(_MARKS[check.status], check.name, escape(check.found) + advice)
        console = out()
        console.print(made)
        verdict = f"[bold red]not ready[/]: {', '.join(failed)}" if failed else "[green]ready[/]"
        console.print(verdict)
    if failed:
        raise typer.Exit(1)
