"""Sources that go through a receiver log: what they share. `socket.py` is the smallest of them.

`load` sees to it that a receiver lives (`receiver/process.py`), and gives Spark the log to read by offset. A receiver
that is killed while the job runs is started again by the reader; one that failed with words of its own fails the epoch
with these words, and the job's restart strategy decides.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.receiver.log import LogSettings
from tallystick.receiver.process import ReceiverSpec, ensure_received, stop_receiver
from tallystick.receiver.reading import LogReader
from tallystick.receiver.status import read_status
from tallystick.records import Json
from tallystick.sources.base import Source, SourceLog, need_whole
from tallystick.sources.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_registering = threading.Lock()
BAD_RECORDS = ("dead-letter", "stop")


@dataclass(frozen=True)
class ReceiverSettings:
    """How a receiver log is kept. One log is for one job.

    max_bytes        at most so much disk; then settled records go early, and if there are none, nothing is received
    keep             how long records stay after their epoch is settled, for a checkpoint that is restored
    segment_bytes    how large the files of the log are
    window           how many ids are kept to know repeats by
    bad_records      what cannot be a record goes to the ``dead-letter`` log, or the receiver is to ``stop``
    max_record_bytes  larger records are refused
    patience         how long a server may be away before the receiver gives up, and the job with it
    outlives         how long the receiver goes on without its driver, before it ends
    run              ``beside`` the driver, started by the job; ``apart``: ``tallystick receiver run``, by you
    """

    max_bytes: int = 10 << 30
    keep: str = "1h"
    segment_bytes: int = 64 << 20
    window: int = 100_000
    bad_records: str = "dead-letter"
    max_record_bytes: int = 1 << 20
    patience: str = "5m"
    outlives: str = "1h"
    run: str = "beside"

    def __post_init__(self) -> None:
        need_whole(
            "receiver",
            max_bytes=self.max_bytes,
            segment_bytes=self.segment_bytes,
            window=self.window,
            max_record_bytes=self.max_record_bytes,
        )
        duration_s(self.keep)
        duration_s(self.patience)
        duration_s(self.outlives)
        if self.bad_records not in BAD_RECORDS:
            raise ConfigError(f"receiver: bad_records is {self.bad_records!r}, needed one of {', '.join(BAD_RECORDS)}")
        if self.run not in ("beside", "apart"):
            raise ConfigError(f"receiver: run is {self.run!r}, needed beside or apart")
        if self.max_bytes < 2 * self.segment_bytes:
            raise ConfigError(
                f"receiver: max_bytes is {self.max_bytes}, less than two segments of {self.segment_bytes}: the log "
                "could never let go of one. raise it, or make the segments smaller"
            )

    def log_settings(self) -> LogSettings:
        return LogSettings(self.max_bytes, self.segment_bytes, duration_s(self.keep), self.window)


class ReceivedSource(Source):
    """Records of a receiver log. Columns: ``value``, ``id``, ``received``, ``attributes`` and ``offset``.

    ``value`` is text if an encoding is declared, bytes otherwise; ``received`` is when the receiver had it.
    """

    log: str | os.PathLike[str]
    receiver: ReceiverSettings
    partitions: int
    max_records_per_epoch: int | None

    @property
    @abstractmethod
    def text(self) -> str | None:
        """The encoding of values, if they are text."""

    @abstractmethod
    def inlet(self) -> Json:
        """The settings of its inlet, ``kind`` among them. May hold secrets."""

    @property
    def folder(self) -> Path:
        return Path(self.log).absolute()

    def _check(self) -> None:
        need_whole(self.facts.name, partitions=self.partitions, max_records_per_epoch=self.max_records_per_epoch)
        if not isinstance(self.log, str | os.PathLike) or not os.fspath(self.log):
            raise ConfigError(f"{self.facts.name}: log is {self.log!r}, needed a folder for the receiver log")
        if not isinstance(self.receiver, ReceiverSettings):
            raise ConfigError(
                f"{self.facts.name}: receiver is a {type(self.receiver).__name__}, needed "
                "ts.sources.ReceiverSettings(…)"
            )

    def spec(self) -> ReceiverSpec:
        """What the receiver's process is told. Holds secrets."""
        apart = self.receiver.run == "apart"
        return ReceiverSpec(
            str(self.folder),
            self.inlet(),
            self.receiver.log_settings(),
            self.receiver.bad_records == "stop",
            None if apart else duration_s(self.receiver.outlives),
        )

    def load(self, spark: SparkSession) -> DataFrame:
        """Starts the receiver first, if it runs beside the driver and none lives: it must be there before anybody
        sends. `SourceError` in its own words if it cannot start."""
        from tallystick.sources.log_reader import Records, data_source

        spec = self.spec() if self.receiver.run == "beside" else None
        if spec is not None:
            ensure_received(spec, os.getpid())
            _end_at_exit(self.folder)
        registered = "tallystick_received_" + re.sub(r"\W", "_", f"{self.facts.name}_{self.folder}")
        records = Records(str(self.folder), self.text, self.partitions, self.max_records_per_epoch, spec, os.getpid())
        with _registering:
            spark.dataSource.register(data_source(registered, records))
            return spark.readStream.format(registered).load()

    def release(self) -> None:
        if self.folder in _ours:
            _ours.discard(self.folder)
            stop_receiver(self.folder)

    def _describe(self, offset: Json) -> str | None:
        return str(offset["offset"]) if isinstance(offset, dict) and "offset" in offset else None

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag:
        """Records of the log that are not read. What a sender still has is not known here."""
        reader = LogReader(self.folder)
        unread = max(0, reader.durable - (reader.first if read is None else int(read["offset"])))
        return Lag(records=unread, notice=self._notice())

    def _notice(self) -> str | None:
        """Its log is full, or there are dead letters that nobody has settled."""
        status, letters = read_status(self.folder), LogReader(self.folder / "dead-letters")
        waiting = letters.durable - letters.settled
        found = [
            *([f"its log is full ({status.get('full_of', 'records')}), nothing is received"] * _is_full(status)),
            *([f"{waiting:,} dead letter{'s' * (waiting != 1)}"] * (waiting > 0)),
        ]
        what = "dead-letters" if waiting > 0 else "status"
        return f"{' and '.join(found)}: tallystick receiver {what} {self.log}" if found else None


def _is_full(status: Mapping[str, Json]) -> bool:
    return status.get("state") == "full"


_ours: set[Path] = set()
"""Logs whose receivers work for this process: they end with it, unless it is killed."""


def _end_at_exit(folder: Path) -> None:
    if not _ours:
        atexit.register(_end_all)
    _ours.add(folder)


def _end_all() -> None:
    for folder in list(_ours):
        stop_receiver(folder)
