"""Where records come in: one class per protocol, all with the same four verbs.

An inlet runs in the receiver's process, in one thread. `pump.py` calls it; see there for the order of things.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tallystick.receiver.format import Record
from tallystick.records import Json


@dataclass(frozen=True)
class Refused:
    """What cannot be a record: too large, in another encoding, torn, without an id. Never dropped: see `pump`."""

    reason: str
    record: Record


Received = Record | Refused


class Inlet(ABC):
    """A way in. Made from settings alone; nothing is opened before `open`."""

    kind: str

    @abstractmethod
    def open(self, last: Record | None) -> None:
        """Connect or listen. ``last`` is the newest record of the log: who can ask for what comes after it, does.

        Raises `SourceError` if it can never work (wrong password, address in use). A server that is away is not such
        a case: `receive` tries again.
        """

    @abstractmethod
    def receive(self, wait_s: float) -> Sequence[Received]:
        """Whatever has arrived, in order; waits for the first, at most about ``wait_s``. Nothing is an answer, too.

        Lost connections are made again in here, with pauses. Everything that was given is durable when this is called
        again, or the process is dead.
        """

    @abstractmethod
    def acknowledge(self) -> None:
        """Everything given so far is durable, in the log or among the dead letters: tell the sender, if it listens."""

    @abstractmethod
    def close(self) -> Sequence[Received]:
        """Let go, also after a failure. What was given and not acknowledged goes back to the sender, if it keeps such
        things. Returns what was received in part: nothing is dropped without a word."""

    def rest(self, seconds: float) -> None:
        """The log is full: receive nothing for so long, but keep the connection if there is one."""
        time.sleep(seconds)

    def counts(self) -> Mapping[str, int]:
        """What only the inlet can count: connections lost, datagrams that the system dropped."""
        return {}

    def facts(self) -> Mapping[str, Json]:
        """What is good to know while it runs, such as the address that it listens on."""
        return {}
