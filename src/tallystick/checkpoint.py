"""Where and how often a job is checkpointed."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.s3.place import is_s3, place

KEEP = "keep"
DELETE = "delete"
RETENTION_LEAST = 2
"""To do an epoch again, Spark needs what the one before it left."""


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one job: a location of its own, a path, or an ``hdfs:`` or ``s3:`` URI.

    ``interval`` is the time from one epoch's start to the next; ``"0s"`` starts the next one at once.
    ``timeout`` is how long an epoch may take to be prepared; one that takes longer is cancelled and rolled back.
    Servers that give up on open transactions by themselves are told to wait that long.
    ``commit_patience`` is how long a run keeps asking for decided commits to be confirmed before it stops; the next
    run goes on with them. ``min_pause`` is the least time from an epoch's end to the work of the next one.
    ``tolerable_failed`` is how many epochs in a row may fail to be prepared before that counts as a failure of the job:
    each is rolled back and done again at once, without asking the restart strategy. ``retention`` is how many
    finished epochs Spark keeps its logs and state of. ``on_cancel`` says what becomes of the checkpoint when somebody
    stops `Job.run`: keep it, or delete it if nothing in it is open.
    """

    location: str | PathLike[str]
    interval: str = "1s"
    timeout: str = "10m"
    commit_patience: str = "5m"
    min_pause: str = "0s"
    max_concurrent: int = 1
    tolerable_failed: int = 0
    retention: int = 100
    on_cancel: str = KEEP

    def __post_init__(self) -> None:
        if not isinstance(self.location, str | PathLike):
            raise ConfigError(f"a checkpoint location is a path or URI, found {type(self.location).__name__}")
        location = fspath(self.location)
        if not isinstance(location, str):
            raise ConfigError(f"a checkpoint location is a path or URI as text, found {location!r}")
        if not location.strip().strip("/"):
            raise ConfigError(f"a checkpoint needs a location of its own, found {location!r}")
        if is_s3(location):
            place(location)
        duration_s(self.interval)
        if duration_s(self.timeout) <= 0:
            raise ConfigError(f"a checkpoint's timeout is {self.timeout!r}, needed more than nothing, such as '10m'")
        duration_s(self.commit_patience)
        duration_s(self.min_pause)
        if self.max_concurrent != 1 or isinstance(self.max_concurrent, bool):
            raise ConfigError(
                f"a checkpoint's max_concurrent is {self.max_concurrent!r}, needed 1: an epoch begins when the one "
                "before is over, because Spark's state advances from one to the next. for more throughput let the "
                "source give more per epoch"
            )
        _check_count("tolerable_failed", self.tolerable_failed, 0)
        _check_count("retention", self.retention, RETENTION_LEAST)
        if self.on_cancel not in (KEEP, DELETE):
            raise ConfigError(f"a checkpoint's on_cancel is {self.on_cancel!r}, needed {KEEP!r} or {DELETE!r}")

    @property
    def uri(self) -> str:
        return fspath(self.location).rstrip("/")

    @property
    def interval_s(self) -> float:
        return duration_s(self.interval)

    @property
    def timeout_s(self) -> float:
        return duration_s(self.timeout)

    @property
    def commit_patience_s(self) -> float:
        return duration_s(self.commit_patience)

    @property
    def min_pause_s(self) -> float:
        return duration_s(self.min_pause)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"a checkpoint's {name} is {value!r}, needed a whole number of at least {least}")
