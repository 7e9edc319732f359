"""The two-phase commit protocol as pure Python. `epoch.py` is the table of contents."""

from tallystick.protocol.commands import (
    EVERYTHING,
    NOTHING,
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Note,
    Prepare,
    Put,
    Recall,
    Recalled,
    Settled,
    Steps,
    Wait,
)
from tallystick.protocol.epoch import MODES, at_least_once, at_most_once, exactly_once
from tallystick.protocol.settle import in_force

__all__ = [
    "EVERYTHING",
    "MODES",
    "NOTHING",
    "AbortOrphans",
    "Command",
    "Commit",
    "Finished",
    "Note",
    "Prepare",
    "Put",
    "Recall",
    "Recalled",
    "Settled",
    "Steps",
    "Wait",
    "at_least_once",
    "at_most_once",
    "exactly_once",
    "in_force",
]
