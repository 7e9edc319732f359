"""Guarantees as data: the planner reads them, ``tallystick guarantees`` prints them, the docs are made from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tallystick.records import Mode


class Kind(str, Enum):
    """How a sink reaches its guarantee."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    PLAIN = "plain"


@dataclass(frozen=True)
class SinkFacts:
    name: str
    kind: Kind
    guarantee: Mode
    mechanism: str
    conditions: str = ""


@dataclass(frozen=True)
class SourceFacts:
    """``guarantee`` is that from whoever sends to the rows of a job. ``from_receipt`` is given where it is stronger
    from the moment of receipt, by a receiver log: a job builds on that, and what was lost before is stated."""

    name: str
    guarantee: Mode
    mechanism: str
    conditions: str = ""
    from_receipt: Mode | None = None

    @property
    def kept(self) -> Mode:
        """What holds for everything that was received."""
        return self.from_receipt or self.guarantee


_ORDER = (Mode.AT_MOST_ONCE, Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE)


def weakest(first: Mode, *others: Mode) -> Mode:
    """A sink that may repeat makes the whole at-least-once; a source that may lose makes it at-most-once."""
    return min((first, *others), key=_ORDER.index)
