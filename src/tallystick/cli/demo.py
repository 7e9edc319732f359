"""``tallystick demo``: the promise, shown in a minute or two, with no server."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON, last on standard output.")] = False,
    kills: Annotated[int, typer.Option(min=1, max=4, help="How often each mode is killed.")] = 2,
    keep: Annotated[Path | None, typer.Option(help="Keep the outputs and checkpoints in this new folder.")] = None,
) -> None:
    """Count page views per app, kill the job at named points, restart it, and count what came out.

    Three delivery modes, side by side: exactly-once neither loses nor repeats, at-least-once repeats, at-most-once
    loses. Exit status 0 only if exactly that was seen.

    Example: tallystick demo --kills 4
    """
    from rich.console import Console
    from rich.live import Live

    from tallystick.demo import campaign, view

    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} exists: needed a folder that does not", param_hint="--keep")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the jobs are ended too
    screen = Console(stderr=True)
    points = campaign.KILLS[:kills]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tallystick-demo-") as scratch:
        lanes = campaign.lanes(keep or Path(scratch))
        with Live(console=screen, refresh_per_second=4, transient=True, auto_refresh=screen.is_terminal) as shown:

            def watch() -> None:
                if screen.is_terminal:
                    shown.update(view.live(lanes, time.monotonic() - started))
                time.sleep(0.25)

            campaign.run_all(lanes, points, at_once=3, watch=watch)
        screen.print(view.verdict(lanes))
        if as_json:
            print(json.dumps(view.to_json(lanes, time.monotonic() - started)))
        if not all(campaign.as_promised(lane) for lane in lanes):
            screen.print("[red]the modes did not behave as promised: please report this[/red]")
            sys.exit(1)
