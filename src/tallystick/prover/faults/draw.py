"""From one number to a whole schedule: which faults hit which life of the job. The same seed draws the same one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tallystick.errors import ConfigError, UnprovenError
from tallystick.killpoints import POINTS, WORKER_POINTS
from tallystick.prover.faults.base import Fault, fault_of
from tallystick.prover.faults.downtime import Downtime
from tallystick.prover.faults.kill import KillAt, KillExecutor, KillLater
from tallystick.prover.faults.machine import Clock, DiskFull
from tallystick.prover.faults.pause import Pause, Takeover
from tallystick.prover.faults.servers import Network, ServerDown
from tallystick.records import Json

DECIDED = ("after-decide", "inside-commit", "after-commit", "before-return")
"""A kill at one of these leaves a decided epoch: the next life fences its predecessor one epoch later."""
EPOCHS_AT_THE_END = 3
WORKERS_PER_EPOCH = 2
EXECUTOR_EVERY = 3
"""On a cluster, of the workers that are killed at points so many are killed with their executor."""
SHORT_TIMEOUT_S = 20.0
EXPIRED_S = SHORT_TIMEOUT_S + 45.0
"""The Kafka sink adds half a minute to the checkpoint's timeout; the broker looks every few seconds."""


@dataclass(frozen=True)
class Means:
    """What can be injected here: servers of the prover's own, and what the machine allows."""

    servers: tuple[str, ...] = ()
    proxied: tuple[str, ...] = ()
    clock: bool = False
    executors: bool = False
    small_disk: bool = False
    expires: bool = False


@dataclass(frozen=True)
class Schedule:
    """One round: the faults of each life, and as many epochs of work as they need. A last life has no faults."""

    seed: int
    lives: tuple[tuple[Fault, ...], ...]
    epochs: int

    @property
    def wants_small_disk(self) -> bool:
        return any(isinstance(fault, DiskFull) for life in self.lives for fault in life)

    @property
    def wants_expiry(self) -> bool:
        return any(isinstance(fault, Downtime) for life in self.lives for fault in life)

    def to_json(self) -> Json:
        lives = [[fault.to_json() for fault in life] for life in self.lives]
        return {"seed": self.seed, "epochs": self.epochs, "lives": lives}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Schedule:
        lives = tuple(tuple(fault_of(fault) for fault in life) for life in value["lives"])
        return cls(int(value["seed"]), lives, int(value["epochs"]))


def draw(seed: int, family: str, lives: int, means: Means, workers: int = 2, epochs: int | None = None) -> Schedule:
    """``workers``: how many workers are killed in each life before the whole job is, in the family kill-points."""
    if family not in FAMILIES:
        raise ConfigError(f"there are no faults called {family!r}: needed one of {', '.join(FAMILIES)}")
    chance = random.Random(f"{seed}/{family}")
    made = FAMILIES[family](chance, lives, means, workers)
    needed = lives * (-(-workers // WORKERS_PER_EPOCH) + 2) if family == "kill-points" else 8 * lives
    return Schedule(seed, made, epochs if epochs is not None else needed + 1 + EPOCHS_AT_THE_END)


def _kill_points(chance: random.Random, lives: int, means: Means, workers: int) -> tuple[tuple[Fault, ...], ...]:
    """Every point once before any comes again; each whole job in an epoch of its own, so that none hides another."""
    points, worker_points = _deck(chance, POINTS), _deck(chance, WORKER_POINTS)
    made: list[tuple[Fault, ...]] = []
    before, epoch = "", 0
    for _ in range(lives):
        point = next(points)
        if point == "after-fence" and before in ("", "before-settle"):
            point = next(points)  # nobody to fence
        faults: list[Fault] = []
        if point == "after-fence":
            epoch += before in DECIDED
        else:
            epoch += workers > 0  # one that is left in peace, for a clean recovery
            for number in range(workers):
                epoch += number % WORKERS_PER_EPOCH == 0
                executor = means.executors and number % EXECUTOR_EVERY == 0
                faults.append(KillAt(next(worker_points), epoch, not executor, executor))
            epoch += 1
        made.append((*faults, KillAt(point, epoch)))
        before = point
    return tuple(made)


def _deck(chance: random.Random, cards: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(list(cards), len(cards))


def _random(chance: random.Random, lives: int, means: Means, workers: int) -> tuple[tuple[Fault, ...], ...]:
    made: list[tuple[Fault, ...]] = []
    for number in range(lives):
        kill = KillLater(_some(chance, 0.0, 3.0), early=chance.random() < 0.25)
        choices: list[tuple[Fault, ...]] = [
            (kill,),
            (KillLater(_some(chance, 0.0, 2.0), worker=True), kill),
            (Pause(_some(chance, 0.0, 2.0), _some(chance, 0.5, 3.0)), KillLater(_some(chance, 2.0, 6.0))),
        ]
        if means.executors:
            choices += [(KillExecutor(_some(chance, 0.0, 3.0), chance.randrange(2)), kill)] * 3
        if means.clock:
            choices.append((Clock(chance.choice((-86_400, -3_600, 3_600, 86_400))), kill))
        if means.small_disk:
            full = DiskFull(_some(chance, 0.0, 2.0), _some(chance, 0.5, 2.0))
            choices.append(_ended(chance, full, number == lives - 1))
        if means.expires and number:
            choices.append((Downtime(EXPIRED_S), kill))
        if number == lives - 1:
            choices.append((Takeover(_some(chance, 0.0, 2.0)),))
        made.append(chance.choice(choices))
    return tuple(made)


def _servers(chance: random.Random, lives: int, means: Means, workers: int) -> tuple[tuple[Fault, ...], ...]:
    _need_servers(means.servers)
    made: list[tuple[Fault, ...]] = []
    for number in range(lives):
        early = chance.random() < 0.25
        down = ServerDown(chance.choice(means.servers), _some(chance, 0.0, 2.0), _some(chance, 0.5, 3.0), early)
        made.append(_ended(chance, down, number == lives - 1))
    return tuple(made)


def _network(chance: random.Random, lives: int, means: Means, workers: int) -> tuple[tuple[Fault, ...], ...]:
    _need_servers(means.proxied)
    made: list[tuple[Fault, ...]] = []
    for number in range(lives):
        how = chance.choice(("cut", "slow", "half-open"))
        early = chance.random() < 0.25
        fault = Network(chance.choice(means.proxied), how, _some(chance, 0.0, 2.0), _some(chance, 0.5, 3.0), early)
        made.append(_ended(chance, fault, number == lives - 1))
    return tuple(made)


def _all(chance: random.Random, lives: int, means: Means, workers: int) -> tuple[tuple[Fault, ...], ...]:
    """Random lives of every family. A kill point is armed for an epoch that the life is likely to reach."""
    families: list[Callable[..., tuple[tuple[Fault, ...], ...]]] = [_random]
    families += [_servers] if means.servers else []
    families += [_network] if means.proxied else []
    made: list[tuple[Fault, ...]] = []
    for number in range(lives):
        if chance.random() < 0.4:
            made.append((KillAt(chance.choice(POINTS), 4 * number + chance.randrange(1, 4)),))
        else:
            early, last = chance.choice(families)(chance, 2, means, workers)
            made.append(last if number == lives - 1 else early)
    return tuple(made)


def _ended(chance: random.Random, fault: Fault, last: bool) -> tuple[Fault, ...]:
    """A fault that the job may outlive, and then a kill, so that there is work left for the lives to come."""
    return (fault,) if last else (fault, KillLater(_some(chance, 1.0, 6.0)))


def _some(chance: random.Random, least_s: float, most_s: float) -> float:
    return round(chance.uniform(least_s, most_s), 3)


def _need_servers(found: tuple[str, ...]) -> None:
    if not found:
        raise UnprovenError(
            "the job talks to no server that the prover could disturb", "--faults kill-points, random or all"
        )


FAMILIES = {"kill-points": _kill_points, "random": _random, "servers": _servers, "network": _network, "all": _all}
