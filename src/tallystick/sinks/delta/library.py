"""The client library: deltalake, which writes Delta's log without Spark and knows application transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tallystick.errors import MissingExtraError, SinkError
from tallystick.sinks.filesystem import Posix

_durable: dict[str, str] = {}
"""The newest entry of each table's log that this process has synced."""


def library() -> Any:
    try:
        import deltalake
    except ImportError as cause:
        raise MissingExtraError(
            f"Delta needs the package deltalake, which cannot be imported here ({cause}). on this machine: "
            "pip install 'tallystick[delta]'"
        ) from cause
    return deltalake


def newest(path: str) -> Any:
    """The table as it is now; None if there is none. Raises what deltalake raises.

    Read anew each time: whoever commits on a table that another thread has moved on would not notice a rival.
    """
    delta = library()
    return delta.DeltaTable(path) if delta.DeltaTable.is_deltatable(path) else None


def make_durable(path: str) -> None:
    """Make every entry of the log survive a loss of power: at first all that are there, then those that are new."""
    log, known = Path(path) / "_delta_log", _durable.get(path, "")
    entries = sorted(log.glob("*.json"))
    made_anew = not entries or entries[-1].name < known
    Posix().sync([*(entry for entry in entries if made_anew or entry.name > known), log])
    _durable[path] = entries[-1].name if entries else ""


@contextmanager
def told(path: str, doing: str) -> Iterator[None]:
    """What deltalake raises becomes a `SinkError`."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise SinkError(
            f"the Delta table {path} cannot be {doing}: {first_line(error)}. look with: ls {path}/_delta_log"
        ) from error


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
