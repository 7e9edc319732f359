"""``tallystick prove``: kill somebody's own job at every step, and count what was lost, repeated, torn or made up."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import err, for_people, out, print_json, table
from tallystick.cli.options import AsJson, Debug, JobFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tallystick.prover.campaign import Order, Progress
    from tallystick.prover.report.result import Result

EXAMPLES = (
    "Examples: tallystick prove app_pv.py · tallystick prove jobs.py:orders --faults all --for 30m "
    "--report orders.html · tallystick prove jobs.py:orders --replay proof/round-3"
)


def prove(
    job: JobFile,
    faults: Annotated[
        str, typer.Option(metavar="FAMILY", help="kill-points, random, servers, network or all.")
    ] = "kill-points",
    kills: Annotated[int, typer.Option(min=1, help="Go on until so many processes were killed.")] = 20,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Go on for this long instead, such as 30m.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="All faults and records follow from it.")] = 1,
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Rounds at the same time.")] = 1,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On a standalone cluster; with random faults its executors die, too.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, max=50, help="kill-points: how many Python workers die before each driver.")
    ] = 2,
    records: Annotated[int, typer.Option(min=2, help="Records per epoch and source; an even number.")] = 40,
    rate: Annotated[
        float | None, typer.Option(min=0.1, metavar="NUMBER", help="Records per second and source, not all at once.")
    ] = None,
    stuck_after: Annotated[str, typer.Option(metavar="TIME", help="Readers that wait longer are stuck.")] = "60s",
    replay: Annotated[
        Path | None, typer.Option(metavar="ROUND", help="Repeat the faults of a round that was kept.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page to send on.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep histories and logs in a new folder.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Prove a job: run it on numbered records, kill it again and again, judge what readers saw.

    The job runs as it is declared, but reads and writes in places of the prover's own: nothing of yours is touched.
    Exit status 0 only if the verdict is valid; invalid and unknown are 1. What is not valid is kept for a look.
    """
    from tallystick.config import duration_s
    from tallystick.prover.campaign import Order, need_folder

    order = Order(
        job,
        faults,
        kills,
        None if duration is None else duration_s(duration),
        seed,
        parallel,
        cluster,
        records,
        workers,
        rate,
        stuck_s=duration_s(stuck_after),
    )
    if replay is not None:
        order = _as_before(order, replay)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that jobs and servers are ended too
    with _folder(keep) as folder:
        need_folder(folder)
        result = _run(order, folder)
        if report is not None:
            from tallystick.prover.report.page import page

            report.write_text(page(result), encoding="utf-8")
        held = _keep_evidence(result, folder, keep)
        result.note()
    _show(result, held, report, as_json)
    if result.verdict.value != "valid":
        raise typer.Exit(1)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Short-lived, unless it was asked for."""
    if keep is not None:
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="tallystick-prove-") as scratch:
        yield Path(scratch, "proof")


def _as_before(order: Order, replay: Path) -> Order:
    """The faults and the records of an earlier round, by its folder or its history."""
    from tallystick.errors import TallystickError
    from tallystick.prover.faults import Schedule
    from tallystick.prover.history import lines_of
    from tallystick.prover.life import LifePlan

    path = replay / "history.jsonl" if replay.is_dir() else replay
    if not path.exists():
        raise TallystickError(f"there is no history {path}: needed the folder of a round, such as PROOF/round-1")
    begun = next(iter(lines_of(path)), None)
    if begun is None or begun.get("event") != "begun":
        raise TallystickError(f"{path} does not begin as a history does: needed the history.jsonl of a round")
    plan = LifePlan.from_json(begun["plan"])
    return replace(
        order,
        seed=plan.workload.seed,
        records_per_epoch=plan.workload.per_epoch,
        cluster=plan.master.startswith("spark:"),
        replay=Schedule.from_json(begun["schedule"]),
    )


def _run(order: Order, folder: Path) -> Result:
    from tallystick.prover import campaign

    with _bar() as watch:
        return campaign.prove(order, folder, watch)


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """On a terminal a line that lives; elsewhere one for every phase."""
    console = err()
    shown = ""
    with console.status("") as live:
        if not console.is_terminal:
            live.stop()

        def watch(progress: Progress) -> None:
            nonlocal shown
            if console.is_terminal:
                live.update(_line(progress))
            elif progress.phase != shown:
                shown = progress.phase
                console.print(f"prove: {shown}", soft_wrap=True)
            time.sleep(0.2)

        yield watch


def _line(progress: Progress) -> str:
    took = for_people(time.monotonic() - progress.began_s)
    doing = next((each.doing for each in reversed(progress.rounds) if each.doing != "done"), "")
    rounds = f" · round {len(progress.rounds)} · {progress.kills} kills · {doing}" if progress.rounds else ""
    return f"{progress.phase} · {took}{rounds}"


def _keep_evidence(result: Result, folder: Path, keep: Path | None) -> Path | None:
    """A scratch folder is moved out of the way of its removal if there is something to look into."""
    if keep is not None:
        return keep
    if result.verdict.value == "valid" or not result.rounds:
        return None
    held = Path(tempfile.mkdtemp(prefix="tallystick-proof-"))
    for each in result.rounds:
        (held / f"round-{each.number}").mkdir()
        for path in [each.history, *each.history.parent.glob("*.log")]:
            shutil.move(path, held / f"round-{each.number}" / path.name)
    return held


def _show(result: Result, held: Path | None, report: Path | None, as_json: bool) -> None:
    from tallystick.prover.report.table import show

    console = err() if as_json else out()
    show(result, console, table("check", "answer", "count", "evidence", numbers=("count",)))
    if held is not None:
        console.print(f"histories and logs: {held}", soft_wrap=True)
        wrong = next((each for each in result.rounds if each.verdict.value != "valid"), None)
        if wrong is not None:
            command = f"tallystick prove {result.spec} --replay {held / f'round-{wrong.number}'}"
            console.print(f"to repeat its faults: {command}", soft_wrap=True)
    if report is not None:
        console.print(f"page: {report}", soft_wrap=True)
    if as_json:
        print_json(json.loads(json.dumps(result.to_json())))
