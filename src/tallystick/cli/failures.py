"""From an exception to one clear paragraph. Tracebacks are for ``--debug``."""

from __future__ import annotations

from tallystick.cli.console import err, print_json
from tallystick.errors import TallystickError
from tallystick.records import Json
from tallystick.spark.jobfile import shortened


def report(failure: BaseException, as_json: bool = False) -> None:
    """Say what failed on standard error and, if JSON was asked for, on standard output too."""
    from rich.markup import escape

    kind, message = _in_words(failure)
    err().print(f"[bold red]error[/]: [red]{escape(message)}[/]", soft_wrap=True)
    if as_json:
        print_json({"error": error_json(kind, message)})


def error_json(kind: str, message: str) -> Json:
    return {"kind": kind, "message": message}


def _in_words(failure: BaseException) -> tuple[str, str]:
    kind = type(failure).__name__
    if isinstance(failure, TallystickError):
        return kind, str(failure)
    return kind, f"{kind}: {shortened(failure)}. for the traceback add --debug"
