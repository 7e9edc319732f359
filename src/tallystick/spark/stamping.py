"""The stamps of one driver's attempts: by its clock, and above all that was decided before (`sinks/stamps.py`)."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tallystick.journal import Journal
from tallystick.records import Record
from tallystick.sinks.stamps import AHEAD_AT_MOST_US, newest_stamp_us, next_stamp_us

log = logging.getLogger("tallystick")


class Stamping:
    """One for each coordinator. Call `begin` for every epoch, and `recalled` when its past is known."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._first_us = 0
        self._newest_us = 0
        self._alone = False

    def begin(self) -> None:
        self._first_us = 0

    def recalled(self, alone: bool) -> None:
        """``alone``: this epoch has no earlier decision, and no earlier driver may still be alive."""
        self._alone = alone

    def first_us(self) -> int:
        """The first stamp of this attempt. Ask when every rival has a decision (essay 2).

        The journal is read unless all that was decided since this driver's first epoch is its own.
        """
        if not self._first_us:
            now_us = time.time_ns() // 1000
            others = () if self._alone and self._newest_us else self._journal.records()
            self._first_us = next_stamp_us(max(now_us, self._newest_us + 1), others)
            if self._first_us - now_us > AHEAD_AT_MOST_US:
                log.warning("stamps are %d s ahead of this machine's clock", (self._first_us - now_us) // 1_000_000)
        return self._first_us

    def stamped(self, record: Record) -> Record:
        """A decision of this attempt, with the highest stamp that its rows have."""
        self._newest_us = newest_stamp_us(self.first_us(), record.votes)
        return replace(record, stamp_us=self._newest_us)
