"""The command line: one file per command.

Nothing heavy is imported before a command needs it: ``tallystick --help`` must not wait for Spark, so the files of
commands import Spark, Arrow and rich inside their functions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tallystick.cli import (
    audit,
    checkpoints,
    demo,
    doctor,
    explain,
    guarantees,
    init,
    lag,
    prove,
    receiver,
    run,
    savepoint,
    servers,
    transactions,
)
from tallystick.cli.failures import report
from tallystick.cli.options import HELP

app = typer.Typer(
    name="tallystick",
    help="End-to-end exactly-once for PySpark: two-phase commit from any source to any sink.",
    epilog="Start with: tallystick init, then tallystick run app_pv.py --available-now",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings=HELP,
)

app.command("demo")(demo.demo)
app.command("init", epilog=init.EXAMPLES)(init.init)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
app.command("guarantees", epilog=guarantees.EXAMPLES)(guarantees.guarantees)
app.command("prove", epilog=prove.EXAMPLES)(prove.prove)
app.command("lag", epilog=lag.EXAMPLES)(lag.lag)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(savepoint.app, name="savepoint")
app.add_typer(transactions.app, name="transactions")
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.add_typer(receiver.app, name="receiver")
app.add_typer(servers.app, name="servers")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status: 0 it holds, 1 it does not, 2 it was typed wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        typer.main.get_command(app)(args=given, prog_name="tallystick")
    except Exception as failure:
        if "--debug" in given:
            raise
        report(failure, as_json="--json" in given)
        raise SystemExit(1) from None


def _print_version(asked: bool) -> None:
    if asked:
        from tallystick import __version__

        typer.echo(f"tallystick {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Only for the options that stand before a command."""
