"""From an exception to one clear paragraph. Tracebacks are for ``--debug``."""

from __future__ import annotations

import traceback
from pathlib import Path

from tallystick.cli.console import err, print_json
from tallystick.errors import TallystickError
from tallystick.records import Json


class JobFileError(TallystickError):
    """The user's Python file cannot be used. ``details`` holds its path and line."""


def report(failure: BaseException, as_json: bool = False) -> None:
    """Say what failed on standard error and, if JSON was asked for, on standard output too."""
    from rich.markup import escape

    kind, message = _in_words(failure)
    err().print(f"[bold red]error[/]: [red]{escape(message)}[/]", soft_wrap=True)
    if as_json:
        print_json({"error": error_json(kind, message)})


def error_json(kind: str, message: str) -> Json:
    return {"kind": kind, "message": message}


def in_user_file(failure: BaseException, path: Path) -> JobFileError:
    """What went wrong in somebody's Python file, with the line of that file and not of ours."""
    line = _line_in(failure, path)
    where = f"{path}, line {line}" if line is not None else str(path)
    kind = type(failure).__name__
    text = failure.msg if isinstance(failure, SyntaxError) else _shortened(failure)
    return JobFileError(f"{where}: {kind}: {text}" if text else f"{where}: {kind}", file=str(path), line=line)


def passes_through(failure: BaseException, path: Path) -> bool:
    """Whether the failure was raised below a line of this file."""
    return _line_in(failure, path) is not None


def _line_in(failure: BaseException, path: Path) -> int | None:
    if isinstance(failure, SyntaxError) and failure.filename == str(path):
        return failure.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None


def _in_words(failure: BaseException) -> tuple[str, str]:
    kind = type(failure).__name__
    if isinstance(failure, TallystickError):
        return kind, str(failure)
    return kind, f"{kind}: {_shortened(failure)}. for the traceback add --debug"


def _shortened(failure: BaseException) -> str:
    """Spark puts the plan and the stack of the JVM below the first line of its errors."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    kept = 1 if type(failure).__module__.startswith(("pyspark.", "py4j.")) else 6
    return " ".join(lines[:kept]).rstrip(".;")
