"""What a feed has to know: how to point a source at the prover's own input, and how to put the workload there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tallystick.prover.place import Place
from tallystick.prover.rows import message_of
from tallystick.prover.workload import Numbered, Workload
from tallystick.sources.base import Source


@dataclass(frozen=True)
class Rows:
    """The workload of one source. ``made`` is the job file's ``prove_input``, or None."""

    workload: Workload
    source: str
    sources: tuple[str, ...]
    made: Callable[[Numbered], Any] | None = None

    def record(self, index: int) -> Numbered:
        return self.workload.record(index, self.source, self.sources)

    def messages(self) -> Iterator[tuple[int, bytes | None, bytes]]:
        """For sources of messages: lane, key and value of each, in order."""
        for index in range(len(self.workload)):
            record = self.record(index)
            key, value = message_of(record, None if self.made is None else self.made(record))
            yield self.workload.lane(index), key, value


class Feed(ABC):
    """One kind of source. Both verbs are called in a process that has a Spark session."""

    kind: ClassVar[str]
    """The name in the source's `facts`."""
    servers: ClassVar[tuple[str, ...]] = ()
    """Kinds of servers (`tallystick.servers`) that must run for it."""

    only_fills: ClassVar[bool] = False
    """Whether the job itself does not talk to these servers: then it cannot be disturbed there."""
    proves: ClassVar[str] = ""
    """For the verdict, if it has to say what it is about."""

    @classmethod
    @abstractmethod
    def redirect(cls, source: Any, rows: Rows, place: Place) -> Source:
        """The source as declared, but reading the prover's input, ``workload.per_epoch`` records in each epoch."""

    @classmethod
    @abstractmethod
    def fill(cls, source: Any, rows: Rows, place: Place) -> None:
        """Once, before any run: put all records where `redirect` will read them. Raises if any is not accepted."""

    @classmethod
    def begin(cls, source: Any, rows: Rows, place: Place) -> None:
        """Once for every run, before its first life: what a run uses up by reading. Needs no Spark session."""
