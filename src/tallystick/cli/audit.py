"""``tallystick audit``: what was delivered, epoch by epoch, from the journal alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import counted, for_people, out, print_json, table
from tallystick.cli.ledger import LOSS, Epoch, Ledger, ledger
from tallystick.cli.options import AsJson, CheckpointPath, Debug

if TYPE_CHECKING:
    from rich.console import Console

    from tallystick.cli.opened import Opened
    from tallystick.journal import Journal
    from tallystick.records import Fingerprint, Json

EXAMPLES = "Examples: tallystick audit checkpoints/pv · tallystick audit checkpoints/pv --epochs 5 --json"
EPOCHS_SHOWN = 20


def audit(
    checkpoint: CheckpointPath,
    as_json: AsJson = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Show the last N epochs [as a table: {EPOCHS_SHOWN}].")
    ] = None,
    debug: Debug = False,
) -> None:
    """Add up what a job has delivered: records and fingerprints per epoch and sink, attempts, findings.

    Exit status 1 if rows were given up or the journal is damaged. A fingerprint is a count and an order-independent
    hash sum: equal fingerprints mean equal rows.
    """
    from tallystick.cli.opened import open_checkpoint
    from tallystick.journal import audit_lines

    opened = open_checkpoint(checkpoint)
    found = ledger(audit_lines(opened.journal), standing_totals(opened.journal))
    if as_json:
        print_json(_to_json(opened, found, epochs))
    else:
        _show(out(), opened, found, epochs or EPOCHS_SHOWN)
    if found.losses:
        raise typer.Exit(1)


def standing_totals(journal: Journal) -> dict[int, dict[str, Fingerprint]]:
    """The totals in force of epochs that are not rolled up: exact even after a rewrite with other rows."""
    from tallystick.journal import horizon
    from tallystick.protocol.settle import in_force
    from tallystick.records import totals_by_sink

    rolled_up_to = horizon(journal)
    records = [record for record in journal.records() if record.attempt.epoch > rolled_up_to]
    totals = {}
    for epoch in {record.attempt.epoch for record in records}:
        votes = in_force(record for record in records if record.attempt.epoch == epoch)
        if votes is not None:
            totals[epoch] = totals_by_sink(votes)
    return totals


def _to_json(opened: Opened, found: Ledger, epochs: int | None) -> Json:
    shown = found.epochs[-epochs:] if epochs is not None else found.epochs
    return {
        "job": opened.owner.job,
        "checkpoint": opened.location,
        "ok": not found.losses,
        "losses": list(found.losses),
        "totals": found.totals_json(),
        "epochs": [{**epoch.to_json(), "settled": opened.is_settled(epoch.epoch)} for epoch in shown],
    }


def _show(console: Console, opened: Opened, found: Ledger, epochs: int) -> None:
    made = table(
        "epoch",
        "sink",
        "records",
        "fingerprint",
        "state",
        "tries",
        "took",
        numbers=("epoch", "records", "tries", "took"),
    )
    for epoch in found.epochs[-epochs:]:
        made.add_row(*_row(opened, epoch))
    if found.epochs:
        console.print(made)
    for epoch in found.epochs[-epochs:]:
        _show_remarks(console, epoch)
    left_out = len(found.epochs) - epochs
    if left_out > 0:
        console.print(f"[dim]{counted(left_out, 'older epoch')} not shown: --epochs {len(found.epochs)}[/]")
    _show_totals(console, opened, found)


def _row(opened: Opened, epoch: Epoch) -> tuple[str, ...]:
    """One line per sink within the row of an epoch. The time is that until the decision."""
    sinks = sorted(epoch.sinks.items())
    took = epoch.facts.get("until_decision_s")
    return (
        f"{epoch.epoch}",
        "\n".join(name for name, _ in sinks),
        "\n".join(f"{total.rows:,}{_refused(epoch.refused.get(name, 0))}" for name, total in sinks) or "0",
        "\n".join(f"{total.hash:016x}" for _, total in sinks),
        _state(opened, epoch),
        f"{epoch.attempts}",
        for_people(took) if isinstance(took, int | float) else "",
    )


def _refused(count: int) -> str:
    """Of these so many are not there: they are among the dead letters."""
    return f" [yellow]({count:,} refused)[/]" if count else ""


def _state(opened: Opened, epoch: Epoch) -> str:
    if epoch.decision != "COMMIT":
        return "[yellow]aborted[/]"
    if not opened.is_settled(epoch.epoch):
        return "[yellow]in doubt[/]"
    if epoch.rewritten:
        return "[cyan]rewritten[/]"
    return "[cyan]verified[/]" if epoch.verified else "[green]written[/]"


def _show_remarks(console: Console, epoch: Epoch) -> None:
    from rich.markup import escape

    for reason in epoch.reasons:
        console.print(f"[dim]epoch {epoch.epoch}: aborted {escape(reason)}[/]")
    for note in epoch.notes:
        if note["kind"] != "delivered":
            colour = "red" if note["kind"] == LOSS else "yellow"
            console.print(f"[{colour}]epoch {epoch.epoch}: {note['kind']}, found by generation {note['generation']}[/]")


def _show_totals(console: Console, opened: Opened, found: Ledger) -> None:
    totals = found.totals_json()
    console.print(
        f"job [bold]{opened.owner.job}[/]: {counted(totals['records'], 'record')} in "
        f"{counted(totals['epochs'], 'epoch')}, {counted(totals['attempts'], 'attempt')}, {totals['aborted']} aborted"
    )
    for name, total in found.by_sink.items():
        refused = _refused(found.refused_by_sink.get(name, 0))
        console.print(f"  {name}: {counted(total.rows, 'record')}{refused}, fingerprint {total}")
    if found.losses:
        listed = ", ".join(str(epoch) for epoch in found.losses)
        console.print(f"[bold red]rows were given up in epoch {listed}[/]: tallystick transactions resolve --abandon")
