"""A job whose source gets more records before every run, and is disturbed between the runs: for sources on servers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from killed_job import KilledJob

from tallystick.prover import Tally, tally

FEW = ("before-decide@1", "inside-commit@2")
"""For ``make test``: one kill before the decision, one after it."""


class FedJob(KilledJob):
    """Records are numbers, and so are the rows in the end."""

    per_run: ClassVar[int]

    @abstractmethod
    def feed(self, numbers: range) -> None:
        """Put these into the source; confirmed."""

    def disturb(self, run: int) -> None:
        """When a run was killed."""

    @abstractmethod
    def delivered(self) -> Iterable[int]:
        """What is there in the end."""

    def campaign(self, kills: Sequence[str]) -> Tally:
        for number, kill in enumerate([*kills, None]):
            self.fed = (number + 1) * self.per_run
            self.feed(range(number * self.per_run, self.fed))
            self.run(kill)
            if kill is not None:
                self.disturb(number)
        return tally(range(self.fed), self.delivered())

    fed = 0
    """How many so far."""
