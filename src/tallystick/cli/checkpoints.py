"""``tallystick checkpoints``: what a job has checkpointed, one cut in full, and old ones put away."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import counted, for_people, out, print_json, table
from tallystick.cli.options import HELP, AsJson, CheckpointPath, Debug
from tallystick.records import Json

if TYPE_CHECKING:
    from rich.console import Console

    from tallystick.cli.cut import Cut
    from tallystick.cli.opened import Opened

LIST_EXAMPLES = "Examples: tallystick checkpoints list checkpoints/pv · … list checkpoints/pv --epochs 5 --json"
SHOW_EXAMPLES = (
    "Examples: tallystick checkpoints show checkpoints/pv · … show checkpoints/pv 100 --key app1 · "
    "… show checkpoints/pv 100 --no-state --json"
)
PRUNE_EXAMPLES = "Examples: tallystick checkpoints prune checkpoints/pv --keep 10"
EPOCHS_SHOWN = 20
COLOURS = {"finished": "green", "in doubt": "yellow", "aborted": "yellow", "running": "cyan"}

app = typer.Typer(
    help="The checkpoints of a job: one per epoch, with offsets, state and transactions.",
    no_args_is_help=True,
    context_settings=HELP,
)


@app.command("list", epilog=LIST_EXAMPLES)
def list_(
    checkpoint: CheckpointPath,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Show the last N epochs [as a table: {EPOCHS_SHOWN}].")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the checkpoints of a job: when each was triggered, how long its steps took, its size, records and status.

    [bold]finished[/]: in Spark's commit log. [bold]in doubt[/]: decided COMMIT, not yet seen through.
    [bold]aborted[/]: rolled back, to be done again. [bold]running[/]: begun, nothing decided.
    Only reads: works while the job runs, and on a copy.
    """
    from tallystick.cli.inspecting import listed
    from tallystick.cli.opened import open_checkpoint

    opened = open_checkpoint(checkpoint)
    found = listed(opened)
    if as_json:
        print_json([one.to_json() for one in (found[-epochs:] if epochs is not None else found)])
    else:
        _show_list(out(), opened, found, epochs or EPOCHS_SHOWN)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    checkpoint: CheckpointPath,
    epoch: Annotated[
        int | None, typer.Argument(min=0, help="Which one [default: the newest that is finished].")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Show the state of this key only.")] = None,
    sample: Annotated[int, typer.Option(min=0, metavar="N", help="Show the state of so many keys.")] = 10,
    no_state: Annotated[
        bool, typer.Option("--no-state", help="Read no state: quick, because Spark is not needed.")
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="FILE[:NAME]",
            help="Ask this job's sinks, too, what they hold open, and its sources for what waits.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one checkpoint: the offsets of every source, the state of every operator, the transactions of every sink.

    Only reads: works while the job runs, and on a copy. Values of state are read with Spark's own reader.
    """
    from tallystick.cli.inspecting import State, shown
    from tallystick.cli.opened import open_checkpoint
    from tallystick.spark.jobfile import load_job

    opened = open_checkpoint(checkpoint)
    number = epoch if epoch is not None else max(opened.finished, 0)
    found = shown(opened, number, load_job(job) if job is not None else None, State(not no_state, key, sample))
    if as_json:
        print_json(found)
    else:
        _show_one(out(), found, state=not no_state)


@app.command("prune", epilog=PRUNE_EXAMPLES)
def prune(
    checkpoint: CheckpointPath,
    keep: Annotated[int, typer.Option(min=2, metavar="N", help="How many finished epochs stay.")] = 100,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Put old checkpoints of a stopped job away: Spark's logs of them go, their audit lines stay for good.

    What the newest N epochs need is not touched. State files are left to Spark, which removes old ones while the job
    runs, by the same rule (Checkpoint(retention=…)).
    """
    from tallystick.cli.opened import open_checkpoint
    from tallystick.cli.pruning import prune_checkpoint

    opened = open_checkpoint(checkpoint)
    pruned = prune_checkpoint(opened, keep)
    if as_json:
        print_json(pruned)
        return
    out().print(
        f"job [bold]{opened.owner.job}[/]: {counted(pruned['epochs'], 'epoch')} put away, "
        f"{counted(pruned['files'], 'file')} removed, {counted(pruned['kept'], 'epoch')} kept"
    )


def _show_list(console: Console, opened: Opened, found: list[Cut], epochs: int) -> None:
    numbers = ("epoch", "records", "took", "settle", "prepare", "commit", "size", "tries")
    made = table(
        "epoch",
        "status",
        "triggered",
        "took",
        "settle",
        "prepare",
        "commit",
        "records",
        "size",
        "tries",
        numbers=numbers,
    )
    for one in found[-epochs:]:
        made.add_row(*_row(one))
    if found:
        console.print(made)
    if len(found) > epochs:
        console.print(f"[dim]{counted(len(found) - epochs, 'older epoch')} not shown: --epochs {len(found)}[/]")
    kept = sum(one.kept for one in found)
    console.print(
        f"job [bold]{opened.owner.job}[/]: {counted(len(found), 'epoch')}, of which Spark keeps {kept:,} in full"
    )


def _row(one: Cut) -> tuple[str, ...]:
    steps = one.durations
    return (
        f"{one.epoch}",
        f"[{COLOURS[one.status]}]{one.status}[/]",
        _time(one.triggered_at),
        for_people(one.duration_s) if one.duration_s is not None else "",
        *(for_people(steps[name]) if name in steps else "" for name in ("settle_s", "prepare_s", "commit_s")),
        f"{one.records:,}" + (f" [yellow]({one.refused:,} refused)[/]" if one.refused else ""),
        _size(one.bytes),
        f"{one.attempts}",
    )


def _show_one(console: Console, found: Json, state: bool) -> None:
    """The first lines are the cut itself: ``offset (0,1000)`` and ``count (app1,50000) (app2,10000)``."""
    from rich.markup import escape

    took = for_people(found["duration_s"])
    colour = COLOURS[found["status"]]
    refused = f" [yellow]({found['refused']:,} refused)[/]" if found["refused"] else ""
    console.print(
        f"[bold]chk-{found['epoch']}[/] of job {escape(found['job'])}: [{colour}]{found['status']}[/], "
        f"{_time(found['triggered_at'])}, {took}, {counted(found['records'], 'record')}{refused}, "
        f"{_size(found['bytes'])}",
        soft_wrap=True,
    )
    for line in cut_lines(found):
        console.print(escape(line), soft_wrap=True)
    for operator in found["operators"]:
        console.print(
            f"[dim]operator {operator['operator']} {operator['name']}: {operator['partitions']} partitions, "
            f"{_size(operator['bytes'])} of state, {_size(operator['epoch_bytes'])} by this epoch[/]",
            soft_wrap=True,
        )
    for entry in found["transactions"]:
        place = f"/{entry['slice']}" if entry["slice"] is not None else ""
        rows = f" {counted(entry['records'], 'record')}" if "records" in entry else ""
        rows += f" ({entry['refused']:,} refused)" if entry.get("refused") else ""
        named = f"  [dim]{escape(entry['name'])}[/]" if entry["name"] else ""
        console.print(f"transaction {entry['sink']}{place} {entry['state']}{rows}{named}", soft_wrap=True)
    if found["operators"] and not state:
        console.print("[dim]state was not read: --no-state[/]")


def cut_lines(found: Json) -> list[str]:
    """The cut as people write it down; a name comes first where there are several sources or variables."""
    from tallystick.cli.cut import keyed, pairs

    several = len(found["sources"]) > 1
    lines = [
        f"offset {source['name'] + ' ' if several else ''}{pairs(source['offsets'])}{_lag(source)}"
        for source in found["sources"]
    ]
    for rules in found.get("rules", ()):
        values = [tuple(entry["value"].values()) for entry in rules["sample"]]
        told = " ".join(f"({','.join(map(str, value))})" for value in values)
        more = rules["keys"] - len(values)
        rest = f" … {counted(more, 'more rule')}" if more > 0 else ""
        lines.append(f"rules {rules['state']} {told}{rest} since epoch {rules['since_epoch']}")
    for operator in found["operators"]:
        for values in operator["state"]:
            more = values["keys"] - len(values["sample"])
            rest = f" … {counted(more, 'more key')}" if more > 0 else ""
            lines.append(f"{_named(values)} {keyed(values['sample'])}{rest}")
    return lines


def _lag(source: Json) -> str:
    """Only with a job: others know of no lag."""
    from tallystick.sources.lag import Lag

    if "lag" not in source:
        return ""
    return f"  lag {Lag(**source['lag']) if source['lag'] is not None else 'unknown: ' + source['lag_unknown']}"


def _named(values: Json) -> str:
    """A store called ``default`` is better known by the columns of its values."""
    if values["name"] != "default" or not values["sample"]:
        return str(values["name"])
    value = values["sample"][0]["value"]
    return ",".join(value) if isinstance(value, dict) else "state"


def _time(at: float | None) -> str:
    if at is None:
        return "?"
    return datetime.fromtimestamp(at, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _size(size: int) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size = size / 1024  # type: ignore[assignment]
    return f"{size:.1f} GB"
