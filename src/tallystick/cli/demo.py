"""``tallystick demo``: the promise, shown in a minute or two, with no server; or on a real Kafka broker."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tallystick.demo.campaign import Lane
    from tallystick.demo.stage import Stage

BROKER = "broker"


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON, last on standard output.")] = False,
    kills: Annotated[int, typer.Option(min=1, max=4, help="How often each mode is killed.")] = 2,
    kafka: Annotated[bool, typer.Option("--kafka", help="From Kafka to Kafka, on a broker started for it.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the outputs and checkpoints in this new folder.")] = None,
) -> None:
    """Count page views per app, kill the job at named points, restart it, and count what came out.

    Three delivery modes, side by side: exactly-once neither loses nor repeats, at-least-once repeats, at-most-once
    loses. Exit status 0 only if exactly that was seen.

    Examples: tallystick demo --kills 4 · tallystick demo --kafka
    """
    from rich.console import Console

    from tallystick.demo import campaign, view

    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} exists: needed a folder that does not", param_hint="--keep")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that jobs and broker are ended too
    screen = Console(stderr=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tallystick-demo-") as scratch:
        folder = keep or Path(scratch)
        with _stage(kafka, folder, keep is not None, screen) as stage:
            lanes = campaign.lanes(stage, folder)
            _run(lanes, campaign.KILLS[:kills], screen, started)
        screen.print(view.verdict(lanes))
        if as_json:
            print(json.dumps(view.to_json(lanes, time.monotonic() - started)))
    if keep is not None and kafka:
        screen.print(f"to look at the topics: tallystick servers up kafka --folder {keep / BROKER}", soft_wrap=True)
    if not all(campaign.as_promised(lane) for lane in lanes):
        screen.print("[red]the modes did not behave as promised: please report this[/red]")
        sys.exit(1)


@contextmanager
def _stage(kafka: bool, folder: Path, kept: bool, screen: Console) -> Iterator[Stage]:
    if not kafka:
        from tallystick.demo.files import FilesStage

        yield FilesStage()
        return
    from tallystick.demo.kafka import need_everything, own_broker

    with ExitStack() as running:
        with screen.status("starting a Kafka broker; the first time its parts are fetched …"):
            need_everything()
            stage = running.enter_context(own_broker(folder / BROKER, kept))
        yield stage


def _run(lanes: list[Lane], points: tuple[str, ...], screen: Console, started_s: float) -> None:
    """On a terminal with a table that lives, elsewhere without a word."""
    from rich.live import Live

    from tallystick.demo import campaign, view

    with Live(console=screen, refresh_per_second=4, transient=True, auto_refresh=screen.is_terminal) as shown:

        def watch() -> None:
            if screen.is_terminal:
                shown.update(view.live(lanes, time.monotonic() - started_s))
            time.sleep(0.25)

        campaign.run_all(lanes, points, at_once=3, watch=watch)
