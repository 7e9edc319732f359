"""``tallystick explain``: the plan of a job, its guarantee, and the reason for every loss. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tallystick.cli.console import out, print_json, table
from tallystick.cli.failures import error_json, report
from tallystick.cli.options import AsJson, Debug, JobFile
from tallystick.errors import ConfigError
from tallystick.records import Json

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = "Examples: tallystick explain app_pv.py · tallystick explain jobs.py:orders --json"


def explain(job: JobFile, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what a job promises end to end, part by part, and why. Exit status 1 if the promise cannot hold."""
    from tallystick.spark.jobfile import load_job

    try:
        found = load_job(job)
    except ConfigError as refusal:
        if debug:
            raise
        _refused(refusal, as_json)
        raise typer.Exit(1) from None
    plan = {"job": found.name, **found.explanation.to_json()}
    if as_json:
        print_json(plan)
    else:
        _show(out(), plan)


def _refused(refusal: ConfigError, as_json: bool) -> None:
    """A job that cannot hold its guarantee is refused when it is declared; its plan travels with the error."""
    plan = refusal.details.get("explanation")
    if plan is not None and not as_json:
        _show(out(), plan)
        return
    report(refusal)
    if as_json:
        nothing: dict[str, Json] = {"guarantee": None, "holds": False, "nodes": [], "findings": []}
        print_json({**nothing, **(plan or {}), "error": error_json(type(refusal).__name__, str(refusal))})


def _show(console: Console, plan: Json) -> None:
    from rich.markup import escape

    verdict = "[green]holds[/]" if plan["holds"] else "[red]does not hold[/]"
    name = f"job [bold]{plan['job']}[/]: " if "job" in plan else ""
    console.print(f"{name}{plan['asked']} {verdict}, end to end it is [bold]{plan['guarantee']}[/]")
    parts = table("part", "role", "guarantee", "how")
    for node in plan["nodes"]:
        target = node["target"] if node["target"] not in ("", node["name"]) else ""
        how = f"{escape(node['mechanism'])}" + (f"\n[dim]{escape(target)}[/]" if target else "")
        parts.add_row(escape(node["name"]), node["role"], node["guarantee"], how)
    console.print(parts)
    for finding in plan["findings"]:
        console.print(f"[red]{finding['rule']}[/] (loses {finding['loses']}): {escape(finding['why'])}")
        console.print(f"  to do: {escape(finding['fix'])}")
