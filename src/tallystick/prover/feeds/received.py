"""Sources that go through a receiver log: received once, by a real receiver; every run reads a copy of that log.

What a sender lost before the receiver had it cannot be counted by anybody, so the proof begins at the receipt: what is
in the log must come out once. That everything the prover sent got into the log is checked here.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tallystick.errors import SourceError
from tallystick.prover.feeds.base import Feed, Rows
from tallystick.prover.place import Place
from tallystick.prover.workload import LANES
from tallystick.receiver import LogReader
from tallystick.receiver.process import ensure_received, stop_receiver
from tallystick.receiver.status import is_received, read_status
from tallystick.sources.received import ReceivedSource

RECEIVED_S = 120.0
OF_THE_RECEIVER = ("lock", "status.json", "driver.json", "receiver.log")
"""Files beside the log that are about the process, not about records."""


class ReceivedFeed(Feed):
    """A kind says where the receiver listens or connects to (`receiving`), and sends (`values`, `sending`)."""

    only_fills = True
    proves = "from the receipt on: what its receiver logged must come out once; what a sender lost before is not known"
    receiver_kills: ClassVar[int] = 0
    """How often its receiver is killed while it receives: where nothing may get lost by that."""

    @classmethod
    def redirect(cls, source: Any, rows: Rows, place: Place) -> ReceivedSource:
        """Nobody receives while the job runs: what there is to read is there."""
        made: ReceivedSource = replace(
            cls.receiving(source, rows.source, place),
            log=place.received(rows.source),
            partitions=LANES,
            max_records_per_epoch=rows.workload.per_epoch,
            receiver=replace(source.receiver, run="apart"),
        )
        return made

    @classmethod
    def fill(cls, source: Any, rows: Rows, place: Place) -> None:
        folder, values = place.input(rows.source), cls.values(rows)
        receiving: ReceivedSource = replace(cls.receiving(source, rows.source, place), log=folder)
        spec = replace(receiving.spec(), outlives_s=RECEIVED_S)
        try:
            with cls.sending(receiving, rows, place):
                for kill in range(1, cls.receiver_kills + 1):
                    ensure_received(spec, os.getpid())
                    await_received(folder, kill * len(values) // (cls.receiver_kills + 1))
                    _kill(folder)
                ensure_received(spec, os.getpid())
                cls.send(receiving, values)
                await_received(folder, len(values))
        finally:
            stop_receiver(folder)
        _need_all(folder, values)

    @classmethod
    def begin(cls, source: Any, rows: Rows, place: Place) -> None:
        ignored = shutil.ignore_patterns(*OF_THE_RECEIVER)
        shutil.copytree(place.input(rows.source), place.received(rows.source), ignore=ignored)

    @classmethod
    def values(cls, rows: Rows) -> list[bytes]:
        """What the log shall hold, in the order of sending."""
        return [value for _, _, value in rows.messages()]

    @classmethod
    @abstractmethod
    def receiving(cls, source: Any, name: str, place: Place) -> Any:
        """The source as declared, but with an address of the prover's own."""

    @classmethod
    @contextmanager
    def sending(cls, source: Any, rows: Rows, place: Place) -> Iterator[None]:
        """Around the receiver's life: what it needs to find, such as a server with everything in it."""
        yield

    @classmethod
    def send(cls, source: Any, values: list[bytes]) -> None:
        """To a receiver that lives, if that is how records come."""


def await_received(folder: Path, count: int) -> None:
    """Until the log has so many records; `SourceError` if they do not come, or if its receiver fails."""
    deadline = time.monotonic() + RECEIVED_S
    while LogReader(folder).durable < count:
        status = read_status(folder)
        if status.get("state") == "failed" or time.monotonic() > deadline:
            found = f"{LogReader(folder).durable} of {count} records"
            raise SourceError(f"the receiver of {folder} has {found}: {status.get('error') or 'it waits for more'}")
        time.sleep(0.01)


def _kill(folder: Path) -> None:
    os.kill(int(read_status(folder)["pid"]), signal.SIGKILL)
    while is_received(folder):
        time.sleep(0.01)


def _need_all(folder: Path, values: list[bytes]) -> None:
    log = LogReader(folder)
    found, sent = Counter(record.value for _, record in log.records(0, log.durable)), Counter(values)
    if found != sent:
        raise SourceError(
            f"the receiver log {folder} does not hold what was sent: {(sent - found).total()} are missing, "
            f"{(found - sent).total()} are too many"
        )
