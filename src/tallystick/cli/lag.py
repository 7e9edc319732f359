"""``tallystick lag``: what the sources of a job hold that it has not read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tallystick.cli.console import err, out, print_json, table
from tallystick.cli.options import AsJson, Debug, JobFile

if TYPE_CHECKING:
    from tallystick.spark.lag import SourceLag

EXAMPLES = "Examples: tallystick lag app_pv.py · tallystick lag jobs.py:orders --json"


def lag(job: JobFile, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show how far a job is behind its sources: what each holds after the newest finished epoch.

    Asks the sources themselves and changes nothing there: works while the job runs, and while it does not. Spark is
    started only for places that Spark alone can read. Exit status 0 if every source has answered.
    """
    from tallystick.cli.opened import open_checkpoint
    from tallystick.spark.jobfile import load_job
    from tallystick.spark.lag import lags

    found = load_job(job)
    opened = open_checkpoint(found.checkpoint.uri)
    told = lags(found, opened.location, opened.finished, opened.spark)
    if as_json:
        sources = [one.to_json() for one in told]
        print_json({"job": found.name, "checkpoint": opened.location, "epoch": opened.finished, "sources": sources})
    else:
        _show(found.name, opened.finished, told)
    if any(one.lag is None for one in told):
        raise typer.Exit(1)


def _show(job: str, epoch: int, told: list[SourceLag]) -> None:
    from rich.markup import escape

    made = table("source", "of", "read up to", "lag")
    for one in told:
        made.add_row(
            *(escape(text) for text in (one.name, one.source, one.read)),
            "[red]unknown[/]" if one.lag is None else f"{one.lag}",
        )
    console = out()
    console.print(made)
    after = f"after epoch {epoch}" if epoch >= 0 else "which has finished no epoch yet"
    console.print(f"job [bold]{escape(job)}[/], {after}")
    for one in told:
        for text in filter(None, (one.unknown, one.notice)):
            err().print(f"{one.name}: {escape(text)}", style="yellow", soft_wrap=True)
