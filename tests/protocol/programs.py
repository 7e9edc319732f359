"""Where a driver stands: a place in the tree of all answers that its generator can be sent.

A generator cannot be copied. It is deterministic, though, so a driver is named by its attempt and the answers it got
so far; to go on from there, the generator is made again and the answers are replayed. Each place is visited once and
then known by its number, which keeps the explorer's states small.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tallystick.errors import TallystickError
from tallystick.protocol import Command, Finished, Steps
from tallystick.records import Attempt

Protocol: TypeAlias = Callable[[Attempt], Steps]


@dataclass(frozen=True)
class Place:
    """What the driver does next: a command to answer, a good end, or the error it died of."""

    attempt: Attempt
    answers: tuple[Any, ...]
    next: Command | Finished | TallystickError


class Programs:
    """All places of one protocol, numbered."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.places: list[Place] = []
        self._roots: dict[Attempt, int] = {}
        self._children: dict[tuple[int, Hashable], int] = {}

    def start(self, attempt: Attempt) -> int:
        if attempt not in self._roots:
            self._roots[attempt] = self._visit(attempt, ())
        return self._roots[attempt]

    def answer(self, place: int, answer: Any, key: Hashable) -> int:
        """The place after this answer; an exception is thrown in. ``key`` tells answers apart, and hashes cheaply."""
        child = self._children.get((place, key))
        if child is None:
            here = self.places[place]
            child = self._children[(place, key)] = self._visit(here.attempt, (*here.answers, answer))
        return child

    def _visit(self, attempt: Attempt, answers: tuple[Any, ...]) -> int:
        self.places.append(Place(attempt, answers, self._replay(attempt, answers)))
        return len(self.places) - 1

    def _replay(self, attempt: Attempt, answers: tuple[Any, ...]) -> Command | Finished | TallystickError:
        steps = self.protocol(attempt)
        try:
            command = next(steps)
            for answer in answers:
                command = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
        except StopIteration as end:
            finished: Finished = end.value
            return finished
        except TallystickError as error:
            return error
        return command
