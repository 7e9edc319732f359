"""What goes into the job: uniquely numbered records, each with a key and its place in the order of that key.

Everything follows from the seed: any process can say what record number N is. The records of an epoch come in `LANES`
parts (partitions of a topic, files, tasks), and a key is always in the same one: otherwise it would have no order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

from tallystick.errors import ConfigError
from tallystick.records import Json

LANES = 2


@dataclass(frozen=True)
class Numbered:
    """One record of the workload, as the hook ``prove_input`` gets it.

    ``number`` is unique among all records of all sources; ``sequence`` counts the records of its key from 0.
    """

    number: int
    key: str
    sequence: int
    source: str = ""


@dataclass(frozen=True)
class Workload:
    """``epochs`` times ``per_epoch`` records for each source, over ``keys`` keys."""

    seed: int
    epochs: int
    per_epoch: int = 40
    keys: int = 10

    def __post_init__(self) -> None:
        if self.per_epoch < LANES or self.per_epoch % LANES or self.keys < LANES or self.keys % LANES:
            raise ConfigError(
                f"a workload has {LANES} lanes: records per epoch ({self.per_epoch}) and keys ({self.keys}) need to be "
                f"multiples of {LANES}"
            )
        if self.epochs < 1:
            raise ConfigError(f"a workload needs at least one epoch, found {self.epochs}")

    def __len__(self) -> int:
        return self.epochs * self.per_epoch

    def all_keys(self) -> frozenset[str]:
        return frozenset(_key(number) for number in range(self.keys))

    def record(self, index: int, source: str = "", sources: tuple[str, ...] = ("",)) -> Numbered:
        """The record at a place of one source. ``sources`` are all of them: their numbers interleave."""
        lane = self.lane(index)
        in_lane = self.per_epoch // LANES
        turn = (index // self.per_epoch) * in_lane + index % in_lane
        mine = self.keys // LANES
        key = _order(self.seed, lane, turn // mine, mine)[turn % mine] * LANES + lane
        return Numbered(index * len(sources) + sources.index(source), _key(key), turn // mine, source)

    def lane(self, index: int) -> int:
        """Which part of its epoch a record is in."""
        return index % self.per_epoch * LANES // self.per_epoch

    def epoch(self, epoch: int) -> range:
        """The places of an epoch's records in a source."""
        return range(epoch * self.per_epoch, (epoch + 1) * self.per_epoch)

    def records(self, sources: tuple[str, ...]) -> Iterator[Numbered]:
        """All of them, epoch by epoch, source by source."""
        for epoch in range(self.epochs):
            for source in sources:
                for index in self.epoch(epoch):
                    yield self.record(index, source, sources)

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Workload:
        return cls(**{str(name): int(number) for name, number in value.items()})


def _key(number: int) -> str:
    """Looks like nothing that a job would make up by itself: that is how a key is recognised in the output."""
    return f"key_{number:03d}"


@lru_cache(maxsize=1024)
def _order(seed: int, lane: int, turn: int, keys: int) -> tuple[int, ...]:
    """The keys of a lane take turns, in another order each time."""
    return tuple(random.Random(f"{seed}/{lane}/{turn}").sample(range(keys), keys))
