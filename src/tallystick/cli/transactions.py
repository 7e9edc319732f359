"""``tallystick transactions``: what is not over, and what a person chose about an epoch in conflict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import counted, err, for_people, out, print_json
from tallystick.cli.options import HELP, AsJson, CheckpointPath, Debug
from tallystick.errors import CheckpointError
from tallystick.records import Decision, Resolution

if TYPE_CHECKING:
    from rich.console import Console

    from tallystick.cli.opened import Opened
    from tallystick.cli.pending import Pending

LIST_EXAMPLES = "Examples: tallystick transactions list checkpoints/pv · … list checkpoints/pv --job app_pv.py --json"
RESOLVE_EXAMPLES = "Example: tallystick transactions resolve checkpoints/pv 12 --rewrite"

app = typer.Typer(
    help="Transactions that are not over, and epochs that a person must settle.",
    no_args_is_help=True,
    context_settings=HELP,
)

JobOption = Annotated[
    str | None, typer.Option("--job", metavar="FILE[:NAME]", help="Ask this job's sinks, too, what they hold open.")
]


@app.command("list", epilog=LIST_EXAMPLES)
def list_(checkpoint: CheckpointPath, job: JobOption = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List transactions that are prepared or decided and not yet seen through.

    [bold]in doubt[/]: decided COMMIT, not yet confirmed to Spark; the next start of the job finishes it.
    [bold]pre-committed[/], [bold]begun[/]: what a sink holds open (only with --job).
    """
    from tallystick.cli.load import load_job
    from tallystick.cli.opened import open_checkpoint
    from tallystick.cli.pending import pending

    opened = open_checkpoint(checkpoint)
    found = pending(opened, load_job(job) if job is not None else None)
    if as_json:
        print_json([entry.to_json() for entry in found])
    else:
        _show(opened, found, asked_sinks=job is not None)


def _show(opened: Opened, found: list[Pending], asked_sinks: bool) -> None:
    console = out()
    if found:
        _show_entries(console, found)
    else:
        where = "in the journal and the sinks" if asked_sinks else "in the journal"
        console.print(f"nothing is open {where} of job [bold]{opened.owner.job}[/]")
    if opened.begun > opened.finished and not asked_sinks:
        err().print(
            f"epoch {opened.begun} is not finished. what its sinks hold open shows with --job FILE", style="yellow"
        )


def _show_entries(console: Console, found: list[Pending]) -> None:
    """Names are long, and no use if they are cut: each has a line of its own."""
    wide = max(len("sink"), *(len(entry.sink) for entry in found))
    console.print(f"[bold]epoch  gen  {'sink':<{wide}}  {'state':<13}  {'age':>10}  at the next start[/]")
    for entry in found:
        age = for_people(entry.age_s)
        start = f"{entry.epoch:>5}  {entry.generation:>3}  {entry.sink:<{wide}}"
        console.print(f"{start}  {entry.state:<13}  {age:>10}  {entry.next}", soft_wrap=True)
        console.print(f"            [dim]{entry.name}[/]", soft_wrap=True)


@app.command("resolve", epilog=RESOLVE_EXAMPLES)
def resolve(
    checkpoint: CheckpointPath,
    epoch: Annotated[int, typer.Argument(min=0, help="The epoch that the error of the job named.")],
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write the rows of the replay, though they differ.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Accept that the expired slices are lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Record what to do about an epoch whose expired slices cannot be rewritten as they were. Not to be undone."""
    from tallystick.cli.opened import open_checkpoint

    if rewrite == abandon:
        raise typer.BadParameter("choose one of --rewrite and --abandon")
    choice = Resolution.REWRITE if rewrite else Resolution.ABANDON
    opened = open_checkpoint(checkpoint)
    _check_open(opened, epoch)
    if not yes:
        _ask(opened, epoch, choice)
    opened.journal.resolve(epoch, choice)
    standing = opened.journal.resolution(epoch)
    if standing is not choice:
        raise CheckpointError(f"epoch {epoch} was resolved before, as {standing and standing.value}: that stands")
    if as_json:
        print_json({"epoch": epoch, "resolution": choice.value})
    else:
        out().print(f"epoch {epoch} of job [bold]{opened.owner.job}[/]: {choice.value}. start the job again")


def _check_open(opened: Opened, epoch: int) -> None:
    from tallystick.journal import horizon

    if opened.is_settled(epoch) or epoch <= horizon(opened.journal):
        raise CheckpointError(f"epoch {epoch} is settled: every slice of it is published, there is nothing to resolve")
    if not any(record.decision is Decision.COMMIT for record in opened.journal.records(epoch)):
        raise CheckpointError(
            f"the journal has no decided epoch {epoch}, so nothing of it can be in conflict. see what is open: "
            f"tallystick transactions list {opened.location}"
        )


def _ask(opened: Opened, epoch: int, choice: Resolution) -> None:
    """A script that did not say --yes has not chosen, so nothing is read from a pipe."""
    from tallystick.protocol.settle import in_force

    held = [vote for vote in in_force(opened.journal.records(epoch)) or () if vote.committable is not None]
    rows = sum(vote.fingerprint.rows for vote in held)
    effect = {
        Resolution.REWRITE: "slices that expired are written with the rows of the replay, which differ",
        Resolution.ABANDON: "slices that expired are given up: their rows are lost",
    }[choice]
    err().print(
        f"epoch {epoch} of job [bold]{opened.owner.job}[/] is decided with {counted(len(held), 'slice')} and "
        f"{counted(rows, 'record')}.\n{choice.value}: {effect}. this cannot be undone."
    )
    if not sys.stdin.isatty():
        raise CheckpointError("nobody was asked, because standard input is no terminal: add --yes if you are sure")
    if not typer.confirm("go on?", err=True):
        raise typer.Exit(1)
