"""Run a module of PySpark as ``python -m`` does, and let it end without a word when Spark hangs up on it.

Started by ``worker-python``, as a file: it imports nothing of this package, because that would cost every Python
process of Spark some time. When a query is stopped, Spark closes the sockets to its workers and sources; those of the
file system answer the next write with an error, and PySpark prints its stack on the terminal of whoever stopped it.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from types import TracebackType
from typing import Any

_print_exc = traceback.print_exc


def _hung_up(failure: BaseException | None) -> bool:
    """A connection that was lost, noticed by PySpark itself and by nobody's code that runs in it."""
    if not isinstance(failure, ConnectionError):
        return False
    return all(_is_pyspark(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(failure.__traceback__))


def _is_pyspark(file: str) -> bool:
    """Or of the interpreter, or this file."""
    standard = file.startswith(("<frozen", _STANDARD)) and "-packages/" not in file
    return standard or "/pyspark/" in file or file == __file__


_STANDARD = traceback.__file__.rpartition("/")[0] + "/"


def _print_unless_hung_up(*arguments: Any, **named: Any) -> None:
    if not _hung_up(sys.exc_info()[1]):
        _print_exc(*arguments, **named)


def _ended(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
    if not _hung_up(failure):
        sys.__excepthook__(kind, failure, trace)


def main() -> None:
    """``worker_main.py -m MODULE ARGUMENT…``"""
    sys.path[0] = ""  # as with -m: where the process was started
    sys.argv = sys.argv[2:]
    traceback.print_exc = _print_unless_hung_up
    sys.excepthook = _ended
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
