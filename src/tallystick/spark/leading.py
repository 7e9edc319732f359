"""One driver leads a job; a standby takes over when the leader's beats stop. docs/decisions/0009-standby-by-lease.md.

A `Leadership` lasts as long as a run, through all restarts of its query. `check` is called before every step that
writes; a thread of its own beats, and stops the query of a leader that was deposed while it had nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from tallystick.errors import CheckpointError, FencedError, JournalError
from tallystick.journal import Journal
from tallystick.journal.lease import Beat, Leases
from tallystick.journal.store import Store
from tallystick.records import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallystick")

BEAT_S = 1.0
PATIENCE_S = 4.0
"""How long the newest beat must not have changed before a standby takes over."""
POLL_S = 0.25


class Leadership:
    """Driver: the right to run a job, claimed once, kept by beating, lost for good."""

    def __init__(self, store: Store, who: Mapping[str, Json], spark: SparkSession) -> None:
        self.term: int | None = None
        self._leases = Leases(store)
        self._journal = Journal(store)
        self._who = dict(who)
        self._spark = spark
        self._over = threading.Event()
        self._lost = False
        self.asked = False
        """Somebody asked through the journal that the job stops."""
        self._on_lost: Callable[[], None] | None = None
        self._on_asked: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def wait(self, tell: Callable[[str], None]) -> bool:
        """Standby: until nobody leads, and the next term is ours. ``tell`` is given a line when there is news.

        Watches beats by this machine's monotonic clock only. False if the leader was asked to stop: then the job is to
        stand still, and nobody takes over.
        """
        owner = self._journal.identity()
        seen, since_s = self._leases.newest(), time.monotonic()
        tell(self._led_by(seen))
        while True:
            time.sleep(POLL_S)
            newest = self._leases.newest()
            if newest != seen:
                if newest is not None and (seen is None or newest.term != seen.term):
                    tell(self._led_by(newest))
                seen, since_s = newest, time.monotonic()
            elif time.monotonic() - since_s >= PATIENCE_S:
                if seen is not None and self._leases.stop_requested(seen.term):
                    tell("the leader was asked to stop: this standby ends, too")
                    return False
                owner = owner or self._journal.identity()
                if owner != self._journal.identity():
                    raise CheckpointError(
                        f"{self._where()} was deleted or replaced while this standby waited: it belonged to {owner}. "
                        "nothing was written. start the job anew if that is what you want"
                    )
                self.term = self._leases.claim(self._who, after=self._leases.term())
                if self.term is not None:
                    break
                since_s = time.monotonic()
        time.sleep(BEAT_S)  # a leader that lives after all sees the claim with its next beat, and stops
        tell(f"term {self.term} is ours: no sign of life of the leader for {PATIENCE_S:g} s")
        return True

    def take(self, on_lost: Callable[[], None], on_asked: Callable[[], None]) -> None:
        """Lead from here on: claim a term unless there is one, and beat. May be called again after a restart.

        ``on_lost`` is called from another thread when somebody else leads, ``on_asked`` when the job is to stop.
        """
        self._on_lost, self._on_asked = on_lost, on_asked
        if self.term is None:
            self.term = self._leases.claim(self._who)
        self.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="tallystick-beat", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Before a step: `FencedError` if another driver leads."""
        if self._lost or (self.term is not None and self._leases.superseded(self.term)):
            self._lost = True
            raise FencedError(
                f"another driver leads this job now (term {self._leases.term()}, this one had term {self.term}): this "
                "one stops. nothing more was published by it"
            )

    @property
    def lost(self) -> bool:
        return self._lost

    def release(self, patience_s: float = 2 * BEAT_S) -> bool:
        """The run is over: no more beats. False if one is still under way after that time."""
        self._over.set()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _beat(self) -> None:
        number = 0
        while self.term is not None and not self._over.is_set():
            try:
                self._ask_jvm()
                if self._leases.term() > self.term:
                    self._depose()
                    return
                if not self.asked and self._leases.stop_requested(self.term):
                    self._ask()
                number += 1
                self._leases.beat(Beat(self.term, number), self._who)
            except JournalError as failure:
                log.warning("this driver could not show that it lives: %s", failure)
            except (Py4JError, ConnectionError) as gone:
                log.debug("no more beats: Spark's JVM is gone (%s)", gone)
                return
            self._over.wait(BEAT_S)

    def _depose(self) -> None:
        self._lost = True
        log.warning("another driver leads this job now: this one stops")
        if self._on_lost is not None:
            self._on_lost()

    def _ask(self) -> None:
        """In a thread of its own: the beats go on until the epoch is over."""
        self.asked = True
        log.warning("this job was asked to stop: it ends after the running epoch")
        if self._on_asked is not None:
            threading.Thread(target=self._on_asked, name="tallystick-asked", daemon=True).start()

    def _ask_jvm(self) -> None:
        """Blocks while the JVM hangs, so that a driver without its JVM does not count as living."""
        jvm: Any = self._spark.sparkContext._jvm
        jvm.System.nanoTime()

    def _led_by(self, beat: Beat | None) -> str:
        if beat is None:
            return "standby: nobody has led this job yet"
        who = self._leases.holder(beat.term) or {}
        return f"standby: led by process {who.get('pid')} on {who.get('host')}, term {beat.term}"

    def _where(self) -> str:
        return self._journal.store.locate("job.json")


def warm_up(spark: SparkSession) -> None:
    """Standby: have a Python worker run, and the classes loaded that the first epoch needs."""
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
