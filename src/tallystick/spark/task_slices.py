"""Executor: the slices of one task, one after the other.

Mostly a task has one. Where a query asks for more slices than can be written at once, a task has several (`slicing`):
each is a transaction of its own, but a task costs the JVM and the worker more than a transaction does. Where a sink can
do that (`TransactionalSink.together`), slices that have all their rows wait for some more, to be pre-committed with
them: the sink then waits once for all of them, not once for each. Only small ones wait, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallystick.errors import EpochError
from tallystick.records import Vote
from tallystick.spark.slice_writer import SliceWriter, vote_all

WAITING_MAX = 16
WAITING_BYTES = 1 << 20


@dataclass(frozen=True)
class Slice:
    """The writers of one slice: one for each output, and one for what they refuse if the job has a place for it."""

    number: int
    outputs: list[SliceWriter]
    letters: SliceWriter | None

    @property
    def writers(self) -> list[SliceWriter]:
        return [*self.outputs, *([] if self.letters is None else [self.letters])]


class TaskSlices:
    def __init__(self, make: Callable[[int], Slice]) -> None:
        self._make = make
        self._now: Slice | None = None
        self._now_bytes = 0
        self._begun: set[int] = set()
        self._waiting: list[Slice] = []
        self._waiting_bytes = 0
        self._votes: list[Vote] = []

    def taking(self, number: int, size: int) -> Slice:
        """The slice that so many bytes of rows are for. All rows of a slice come before those of the next one."""
        if self._now is None or self._now.number != number:
            self._end()
            if number in self._begun:
                raise EpochError(
                    f"the rows of slice {number} came in two parts, with those of another slice in between: this Spark "
                    "does not read partitions one after the other. nothing was published. use the Spark that this "
                    "version of tallystick names"
                )
            self._begun.add(number)
            self._now = self._make(number)
        self._now_bytes += size
        return self._now

    def votes(self) -> list[Vote]:
        """There are no more rows."""
        self._end()
        self._vote()
        return self._votes

    def give_up(self) -> None:
        """What is pre-committed by now is left to the driver."""
        for one in [*self._waiting, *([] if self._now is None else [self._now])]:
            for writer in one.writers:
                writer.give_up()

    def _end(self) -> None:
        """The slice of now has all its rows. It waits until all of it has voted, for `give_up`."""
        if self._now is None:
            return
        ended, self._now = self._now, None
        self._waiting.append(ended)
        self._waiting_bytes += self._now_bytes
        self._now_bytes = 0
        self._votes += [writer.vote() for writer in ended.writers if not writer.waits]
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES:
            self._vote()

    def _vote(self) -> None:
        """Those that wait, sink by sink."""
        waiting = [[writer for writer in one.writers if writer.waits] for one in self._waiting]
        for of_one_sink in zip(*waiting, strict=True):
            self._votes += vote_all(of_one_sink)
        self._waiting, self._waiting_bytes = [], 0
