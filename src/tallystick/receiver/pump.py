"""Receive, append, acknowledge: the loop of a receiver, in one thread.

Whatever has arrived while the last block was synced makes the next block: that is the group commit. Nothing is
acknowledged before it is durable, and nothing is dropped without being counted:

========================  ========================================================================================
what arrives              where it goes
========================  ========================================================================================
a record                  the log
a repeat within window    nowhere; counted as ``repeated``
what cannot be a record   the dead letters, with the reason; or the receiver stops (``bad_records="stop"``)
========================  ========================================================================================

If the log is at its bound, nothing is received until settled segments can go: senders wait, or lose, as they can. The
same goes for the dead letters, which a person settles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tallystick import killpoints
from tallystick.errors import SourceError
from tallystick.receiver.format import Record, encoded_bytes
from tallystick.receiver.inlet import Inlet, Received, Refused
from tallystick.receiver.log import LogFullError, ReceiverLog
from tallystick.receiver.status import Status

WAIT_S = 0.25
TIDY_EVERY_S = 1.0
BLOCK_BYTES = 8 << 20


class Pump:
    """One run of a receiver. ``wanted`` is asked about once a second whether to go on."""

    def __init__(
        self,
        inlet: Inlet,
        log: ReceiverLog,
        dead_letters: ReceiverLog,
        status: Status,
        wanted: Callable[[], bool],
        stop_at_bad: bool = False,
    ) -> None:
        self.inlet = inlet
        self.log = log
        self.dead_letters = dead_letters
        self.status = status
        self.wanted = wanted
        self.stop_at_bad = stop_at_bad
        self.stopping = False
        self._commits = 0
        self._tidied_s = 0.0

    def run(self) -> None:
        """Until it is told to stop, is not wanted any more, or fails."""
        self.status.counts["cut_bytes"] += self.log.cut_bytes + self.dead_letters.cut_bytes
        try:
            self.inlet.open(self.log.last)
            self._say("receiving")
            while not self.stopping and self._tidy():
                if self.log.full or self.dead_letters.full:
                    self._rest()
                else:
                    self._take(self.inlet.receive(WAIT_S))
        except Exception as failure:
            self._close()
            self._say("failed", str(failure))
            raise
        self._close()
        self._say("stopped")

    def _close(self) -> None:
        """What the inlet still had is kept, too; nobody is told of it."""
        self._keep(self.inlet.close())

    def _take(self, received: Sequence[Received]) -> None:
        self._say("receiving")
        if not received:
            return
        refused = self._keep(received)
        if refused and self.stop_at_bad:
            raise SourceError(
                f"a record was refused: {refused[0].reason}. what came before it is in the log. remove it where it "
                'comes from, or declare bad_records="dead-letter"'
            )
        killpoints.reach("receiver-before-acknowledge", self._commits)
        self.inlet.acknowledge()
        killpoints.reach("receiver-after-acknowledge", self._commits)
        self._commits += 1

    def _keep(self, received: Sequence[Received]) -> list[Refused]:
        """Make it durable, each where it belongs. Returns what was refused."""
        refused = [each for each in received if isinstance(each, Refused)]
        records = [each for each in received if isinstance(each, Record)]
        fresh = [record for record in records if self.log.ids.is_new(record.id)]
        self.status.counts["repeated"] += len(records) - len(fresh)
        for block in _blocks(fresh):
            self._append(self.log, block)
        if refused:
            self._append(self.dead_letters, [_dead_letter(each) for each in refused])
            self.status.counts["refused"] += len(refused)
        return refused

    def _append(self, log: ReceiverLog, records: Sequence[Record]) -> None:
        """Until there is room. Whoever waits for the acknowledgement waits, too."""
        while True:
            try:
                return log.append(records)
            except LogFullError:
                if self.stopping:
                    raise SourceError(f"the disk of {log.folder} is full: the last records were not taken") from None
                self._rest()

    def _rest(self) -> None:
        self._say("full")
        self.inlet.rest(WAIT_S)
        self._remove_settled()

    def _tidy(self) -> bool:
        """From time to time: make room, and see whether anybody still wants this."""
        now = time.monotonic()
        if now - self._tidied_s < TIDY_EVERY_S:
            return True
        self._tidied_s = now
        self._remove_settled()
        return self.wanted()

    def _remove_settled(self) -> None:
        """Records that epochs have committed, and dead letters that a person has dealt with."""
        for log in (self.log, self.dead_letters):
            self.status.counts["segments_removed"] += log.remove_settled()

    def _say(self, state: str, error: str | None = None) -> None:
        self.status.count_inlet(self.inlet.counts())
        facts = {
            "kind": self.inlet.kind,
            "offset": self.log.offset,
            "dead_letters": self.dead_letters.offset,
            "bytes": self.log.disk_bytes,
            "max_bytes": self.log.settings.max_bytes,
            **({"full_of": "records" if self.log.full else "dead letters"} if state == "full" else {}),
            **self.inlet.facts(),
        }
        self.status.say(state, facts, error)


def _dead_letter(refused: Refused) -> Record:
    record = refused.record
    return replace(record, attributes={**record.attributes, "reason": refused.reason})


def _blocks(records: Sequence[Record]) -> list[list[Record]]:
    """In blocks of bounded size: what is written with one call must fit into memory twice."""
    made: list[list[Record]] = []
    room = 0
    for record in records:
        if not made or room < 0:
            made.append([])
            room = BLOCK_BYTES
        made[-1].append(record)
        room -= encoded_bytes(record)
    return made
