"""What the stores need to know about keys: their shape, and which of them are decisions."""

from __future__ import annotations

import re

from tallystick.errors import JournalError
from tallystick.killpoints import reach

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_KEY = re.compile(rf"(?:(?P<folder>{_NAME})/)?{_NAME}")
_DECISION = re.compile(r"attempts/(?P<epoch>\d+)\.\d+\.json")

TEMPORARY = ".tmp"
"""The folder of unfinished writes. No key can name it: keys do not start with a dot."""


def check_key(key: str) -> None:
    """Raises `JournalError` unless the key is a file name, or a folder and a file name; nothing can climb out."""
    if _KEY.fullmatch(key) is None:
        raise JournalError(f"not a key of the journal: {key!r}, needed NAME or FOLDER/NAME of letters, digits and -_.")


def folder_of(key: str) -> str | None:
    """The folder part of a key; None if it lies in the journal's root."""
    folder, slash, _ = key.rpartition("/")
    return folder if slash else None


def reach_inside_decide(key: str) -> None:
    """The kill point between writing a decision and putting it into place; other keys have none."""
    decision = _DECISION.fullmatch(key)
    if decision is not None:
        reach("inside-decide", int(decision["epoch"]))
