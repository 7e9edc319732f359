"""How far a job is behind its sources: what each of them holds after the offsets of an epoch.

1.  *Beside the job.* Every source is asked by itself, after the offsets that Spark has logged; nothing is asked of the
    query. So it works while the job runs, while it does not, and from another process.
2.  *Nobody waits for it.* What a source answers is for people only. A source that fails to answer is unknown, with its
    words; `Watch` asks in a thread of its own, and seldom enough to take next to nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tallystick.journal import Journal
from tallystick.journal.stores import open_store
from tallystick.records import Json
from tallystick.sources.base import Source, SourceLog
from tallystick.sources.lag import Lag
from tallystick.spark.offsets import newest_epoch, parse_offsets, source_log
from tallystick.spark.stream import JOURNAL_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.job import Job

log = logging.getLogger("tallystick")

EVERY_S = 10.0
FORGOTTEN = "Spark keeps the offsets of the newest epochs only"
SHARE = 0.05
"""Of the time, at most, that a `Watch` spends asking."""


@dataclass(frozen=True)
class SourceLag:
    """One source. ``lag`` is None if it is not known, and ``unknown`` says why. ``read`` is an offset in words."""

    name: str
    source: str
    read: str
    lag: Lag | None
    unknown: str | None = None

    @property
    def notice(self) -> str | None:
        return None if self.lag is None else self.lag.notice

    def to_json(self) -> Json:
        amounts = None if self.lag is None else self.lag.to_json()
        words = {"name": self.name, "source": self.source, "read": self.read}
        return {**words, "lag": amounts, "unknown": self.unknown, "notice": self.notice}

    def __str__(self) -> str:
        return f"{self.name} {'unknown' if self.lag is None else self.lag}"


def lags(job: Job, checkpoint: str, epoch: int, spark: SparkSession | None = None) -> list[SourceLag]:
    """What every source of a job holds after this epoch, in the order of Spark's offset log; -1: nothing was read.

    A `CheckpointError` or `JournalError` if the checkpoint cannot be read.
    """
    inputs = job.inputs
    if epoch < 0:
        return [_asked(name, source, None, list, spark) for name, source in inputs.items()]
    offsets = _offsets(checkpoint, epoch, spark)
    if offsets is None:
        return [SourceLag(name, source.name, "?", None, FORGOTTEN) for name, source in inputs.items()]
    names = _names(checkpoint, spark)
    if len(names) != len(offsets) or not set(names) <= set(inputs):
        why = f"the checkpoint was written for the sources {', '.join(names) or 'of an older version'}"
        return [SourceLag(name, source.name, "?", None, why) for name, source in inputs.items()]
    return [
        _asked(name, inputs[name], offset, partial(source_log, checkpoint, place, spark), spark)
        for place, (name, offset) in enumerate(zip(names, offsets, strict=True))
    ]


def _asked(name: str, source: Source, read: Json, log_of: SourceLog, spark: SparkSession | None) -> SourceLag:
    """Essay 2: whatever a source or a client library raises is its answer."""
    words = "nothing" if read is None else source.describe_offset(read)
    try:
        found = source.lag(read, log_of, spark)
    except Exception as failure:  # noqa: BLE001 - told to whoever asked
        told = " ".join(str(failure).split()) or type(failure).__name__
        return SourceLag(name, source.name, words, None, told)
    return SourceLag(name, source.name, words, found, None if found is not None else "this source cannot tell")


def _offsets(checkpoint: str, epoch: int, spark: SparkSession | None) -> tuple[Json, ...] | None:
    logs = open_store(checkpoint, spark)
    key = f"offsets/{epoch}"
    data = logs.read(key)
    return None if data is None else tuple(parse_offsets(data.decode(errors="replace"), logs.locate(key)).offsets)


def _names(checkpoint: str, spark: SparkSession | None) -> list[str]:
    """The newest driver said which source is which line of Spark's log."""
    journal = Journal(open_store(f"{checkpoint}/{JOURNAL_FOLDER}", spark))
    generations = journal.generations()
    claim = journal.generation(generations[-1]) if generations else None
    return list((claim or {}).get("sources", []))


class Watch:
    """Asks for the lag of a running job now and then, in a thread of its own. A context; ``newest`` is what it knows.

    `finished` is told every epoch that is over, and returns at once.
    """

    def __init__(self, job: Job, spark: SparkSession) -> None:
        self.newest: list[SourceLag] = []
        self._job, self._spark = job, spark
        self._epoch = -1
        self._warned: set[str] = set()
        self._told = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tallystick-lag", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for an answer that is under way."""
        self._over.set()
        self._told.set()

    def finished(self, epoch: int) -> None:
        self._epoch = epoch
        self._told.set()

    def last(self, patience_s: float) -> list[SourceLag]:
        """After the last epoch: asked once more, unless that takes too long. Empty if nothing is known."""
        asked = threading.Thread(target=self._ask, name="tallystick-lag", daemon=True)
        asked.start()
        asked.join(patience_s)
        return [] if asked.is_alive() else self.newest

    def _watch(self) -> None:
        """After the first epoch, and then now and then: also while none ends, because that may be what there is to
        notice."""
        self._told.wait(EVERY_S)
        while not self._over.is_set():
            began_s = time.monotonic()
            self._ask()
            took_s = time.monotonic() - began_s
            self._over.wait(max(EVERY_S, took_s / SHARE))

    def _ask(self) -> None:
        checkpoint = self._job.checkpoint.uri
        try:
            before = -1 if self._epoch >= 0 else newest_epoch(open_store(checkpoint, self._spark), "commits")
            self.newest = lags(self._job, checkpoint, max(self._epoch, before), self._spark)
            self._warn()
        except Exception as failure:  # noqa: BLE001 - nobody waits for it: essay 2
            log.debug("the lag of job %s is not known: %s", self._job.name, failure)
            self.newest = []

    def _warn(self) -> None:
        """Once for every notice: one that says something new is another."""
        for one in self.newest:
            if one.notice is not None and one.notice not in self._warned:
                self._warned.add(one.notice)
                log.warning("source %s: %s", one.name, one.notice)
