"""Where and how often a job is checkpointed."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

from tallystick.config import duration_s
from tallystick.errors import ConfigError


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one job: a location of its own, a path or an ``hdfs:`` URI.

    ``interval`` is the time from one epoch's start to the next; ``"0s"`` starts the next one at once.
    ``commit_patience`` is how long a run keeps asking for decided commits to be confirmed before it stops; the next
    run goes on with them.
    """

    location: str | PathLike[str]
    interval: str = "1s"
    commit_patience: str = "5m"

    def __post_init__(self) -> None:
        if not isinstance(self.location, str | PathLike):
            raise ConfigError(f"a checkpoint location is a path or URI, found {type(self.location).__name__}")
        location = fspath(self.location)
        if not isinstance(location, str):
            raise ConfigError(f"a checkpoint location is a path or URI as text, found {location!r}")
        if not location.strip().strip("/"):
            raise ConfigError(f"a checkpoint needs a location of its own, found {location!r}")
        duration_s(self.interval)
        duration_s(self.commit_patience)

    @property
    def uri(self) -> str:
        return fspath(self.location).rstrip("/")

    @property
    def interval_s(self) -> float:
        return duration_s(self.interval)

    @property
    def commit_patience_s(self) -> float:
        return duration_s(self.commit_patience)
