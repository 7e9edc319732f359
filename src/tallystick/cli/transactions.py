"""``tallystick transactions``: what is not over, ended by hand, and what a person chose about an epoch in conflict."""

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

    from tallystick.cli.ending import Ended
    from tallystick.cli.opened import Opened
    from tallystick.cli.pending import Pending

LIST_EXAMPLES = "Examples: tallystick transactions list checkpoints/pv · … list checkpoints/pv --job app_pv.py --json"
RESOLVE_EXAMPLES = (
    "Examples: tallystick transactions resolve checkpoints/pv 12 --rewrite · "
    "… resolve checkpoints/pv --end --job app_pv.py"
)

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
    from tallystick.cli.opened import open_checkpoint
    from tallystick.cli.pending import pending
    from tallystick.spark.jobfile import load_job

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
    epoch: Annotated[
        int | None, typer.Argument(min=0, help="The epoch that the error of the job named. With --end: only this one.")
    ] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write the rows of the replay, though they differ.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Accept that the expired slices are lost.")] = False,
    end: Annotated[
        bool, typer.Option("--end", help="End what is open now, without starting the job. Needs --job.")
    ] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="FILE[:NAME]", help="With --end: the job whose sinks are asked.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --end: also while a driver lives, which is fenced by it and stops.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Settle by hand what a start of the job cannot, or what should not wait for one. Not to be undone.

    [bold]--rewrite[/], [bold]--abandon[/]: record what to do about an epoch whose expired slices cannot be rewritten
    as they were.
    [bold]--end[/]: what is decided is committed. What is not decided is first decided to be aborted, then rolled back.
    This is what the next start would do; nothing is lost by it.
    """
    if [rewrite, abandon, end].count(True) != 1:
        raise typer.BadParameter("choose one of --rewrite, --abandon and --end")
    if end:
        _end(checkpoint, epoch, job, force, yes, as_json)
        return
    if epoch is None:
        raise typer.BadParameter("--rewrite and --abandon need the EPOCH that the error of the job named")
    if job is not None or force:
        raise typer.BadParameter("--job and --force belong to --end")
    _choose(checkpoint, epoch, Resolution.REWRITE if rewrite else Resolution.ABANDON, yes, as_json)


def _choose(checkpoint: str, epoch: int, choice: Resolution, yes: bool, as_json: bool) -> None:
    from tallystick.cli.opened import open_checkpoint

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


def _end(checkpoint: str, epoch: int | None, job: str | None, force: bool, yes: bool, as_json: bool) -> None:
    from tallystick.cli.ending import EXPIRED, end_open
    from tallystick.cli.opened import open_checkpoint
    from tallystick.cli.pending import lowered_sinks, pending
    from tallystick.spark.jobfile import load_job

    if job is None:
        raise typer.BadParameter("--end needs --job FILE[:NAME]: only the job knows its sinks")
    opened, declared = open_checkpoint(checkpoint), load_job(job)
    if not yes:
        found = [entry for entry in pending(opened, declared) if epoch in (None, entry.epoch)]
        if found:
            _show_entries(err(), found)
        _confirm(f"end {counted(len(found), 'transaction')} of job [bold]{opened.owner.job}[/] now, as shown")
    ended = end_open(opened, lowered_sinks(opened, declared), epoch, force)
    if as_json:
        print_json([entry.to_json() for entry in ended])
    else:
        _show_ended(out(), ended)
        if any(entry.ended == EXPIRED for entry in ended):
            out().print("expired slices are not lost: the next start of the job writes them again")
    if not all(entry.over for entry in ended):
        raise typer.Exit(1)


def _show_ended(console: Console, ended: list[Ended]) -> None:
    for entry in ended:
        where = f"epoch {entry.epoch}, generation {entry.generation}, slice {entry.slice}"
        console.print(f"[bold]{entry.ended:<13}[/]  {entry.sink}: {where}", soft_wrap=True)
        console.print(f"               [dim]{entry.name}[/]", soft_wrap=True)
    if not ended:
        console.print("nothing is open")


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
    from tallystick.protocol.settle import in_force

    held = [vote for vote in in_force(opened.journal.records(epoch)) or () if vote.committable is not None]
    rows = sum(vote.fingerprint.rows for vote in held)
    effect = {
        Resolution.REWRITE: "slices that expired are written with the rows of the replay, which differ",
        Resolution.ABANDON: "slices that expired are given up: their rows are lost",
    }[choice]
    err().print(
        f"epoch {epoch} of job [bold]{opened.owner.job}[/] is decided with {counted(len(held), 'slice')} and "
        f"{counted(rows, 'record')}.\n{choice.value}: {effect}"
    )
    _confirm(choice.value)


def _confirm(what: str) -> None:
    """A script that did not say --yes has not chosen, so nothing is read from a pipe."""
    err().print(f"{what}: this cannot be undone")
    if not sys.stdin.isatty():
        raise CheckpointError("nobody was asked, because standard input is no terminal: add --yes if you are sure")
    if not typer.confirm("go on?", err=True):
        raise typer.Exit(1)
