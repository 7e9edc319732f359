"""The contract of a fault, and the world that it happens in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from tallystick.errors import ConfigError
from tallystick.prover.history import HistoryFile
from tallystick.prover.place import Place
from tallystick.prover.process import JobProcess
from tallystick.records import Json
from tallystick.servers.base import Server
from tallystick.servers.tcp_proxy import TcpProxy

F = TypeVar("F", bound="Fault")


@dataclass
class World:
    """What a fault may touch: one life of the job, its places, and the servers that the prover started."""

    life: int
    place: Place
    history: HistoryFile
    servers: Mapping[str, Server] = field(default_factory=dict)
    proxies: Mapping[str, TcpProxy] = field(default_factory=dict)
    process: JobProcess | None = None
    second: Callable[[], JobProcess] | None = None
    """Starts another driver of the same job, beside this one."""
    environment: dict[str, str] = field(default_factory=dict)
    armed: list[str] = field(default_factory=list)

    @property
    def job(self) -> JobProcess:
        if self.process is None:
            raise ConfigError("a fault was injected before the job was started")
        return self.process

    @property
    def kills_file(self) -> Path:
        """Where workers that are killed at a point leave a line."""
        return self.place.own / f"kills-{self.life}"


@dataclass(frozen=True)
class Fault(ABC):
    """``after_s`` counts from the first commit of this life, or with ``early`` from the start of its first epoch;
    ``lasts_s`` from the injection."""

    kind: ClassVar[str]
    ends_life: ClassVar[bool] = False
    """Whether the job does not outlive it."""

    def set_up(self, world: World) -> None:
        """Before the job starts: change its environment, arm a point."""

    @abstractmethod
    def inject(self, world: World) -> None:
        """While the job runs. Says in the history what it did."""

    def heal(self, world: World) -> None:
        """After `inject`, whatever happened to the job: leave the world as it was."""

    @property
    def delay_s(self) -> float | None:
        """When to inject, None if that happens by itself."""
        return float(getattr(self, "after_s", 0.0))

    @property
    def is_early(self) -> bool:
        return bool(getattr(self, "early", False))

    @property
    def duration_s(self) -> float:
        return float(getattr(self, "lasts_s", 0.0))

    def to_json(self) -> Json:
        return {"kind": self.kind, **asdict(self)}


def fault_of(value: Mapping[str, Json]) -> Fault:
    """The fault that `Fault.to_json` described."""
    known = {kind.kind: kind for kind in Fault.__subclasses__()}
    if value.get("kind") not in known:
        raise ConfigError(f"there is no fault {value.get('kind')!r}: needed one of {', '.join(sorted(known))}")
    fields = {name: part for name, part in value.items() if name != "kind"}
    return known[str(value["kind"])](**fields)
