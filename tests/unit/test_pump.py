"""The pump with an inlet of its own: what is acknowledged when, what a full disk does, what is kept at the end."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import SourceError
from tallystick.receiver import Inlet, LogReader, LogSettings, ReceiverLog, Record
from tallystick.receiver import log as log_module
from tallystick.receiver.disk import write_all
from tallystick.receiver.inlet import Received, Refused
from tallystick.receiver.pump import Pump
from tallystick.receiver.status import Status, read_status


class Script(Inlet):
    """Gives what it is told, batch by batch, and notes how much was durable at each acknowledgement."""

    kind = "script"

    def __init__(self, folder: Path, batches: list[list[Received]], left: Sequence[Received] = ()) -> None:
        self._reader = LogReader(folder)
        self._batches = batches
        self._left = left
        self.given = 0
        self.acknowledged: list[tuple[int, int]] = []
        self.closed = False

    def open(self, last: Record | None) -> None:
        self.last = last

    def receive(self, wait_s: float) -> Sequence[Received]:
        batch = self._batches.pop(0) if self._batches else []
        self.given += len(batch)
        return batch

    def acknowledge(self) -> None:
        self.acknowledged.append((self.given, self._reader.durable))

    def close(self) -> Sequence[Received]:
        self.closed = True
        return self._left

    @property
    def empty(self) -> bool:
        return not self._batches


def run(folder: Path, inlet: Script, stop_at_bad: bool = False, settings: LogSettings | None = None) -> None:
    with ReceiverLog(folder, settings) as log, ReceiverLog(folder / "dead-letters") as dead:
        pump = Pump(inlet, log, dead, Status(folder), lambda: True, stop_at_bad)
        timer = threading.Thread(target=_stop_when_empty, args=(pump, inlet), daemon=True)
        timer.start()
        pump.run()
        timer.join()


def _stop_when_empty(pump: Pump, inlet: Script) -> None:
    deadline = time.monotonic() + 30
    while not inlet.empty and not inlet.closed and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    pump.stopping = True


def records(*names: str) -> list[Received]:
    return [Record(name.encode(), name) for name in names]


def values(folder: Path) -> list[bytes]:
    reader = LogReader(folder)
    return [record.value for _, record in reader.records(0, reader.durable)]


def test_nothing_is_acknowledged_before_it_is_durable(tmp_path: Path) -> None:
    inlet = Script(tmp_path, [records("a", "b"), [], records("c")])
    run(tmp_path, inlet)
    assert inlet.acknowledged == [(2, 2), (3, 3)]
    assert inlet.last is None


def test_repeats_are_acknowledged_and_dropped_and_counted(tmp_path: Path) -> None:
    run(tmp_path, Script(tmp_path, [records("a", "b", "a"), records("b", "c")]))
    again = Script(tmp_path, [records("a", "c", "d")])
    run(tmp_path, again)
    assert values(tmp_path) == [b"a", b"b", b"c", b"d"]
    assert again.acknowledged == [(3, 4)]
    assert read_status(tmp_path)["counts"]["repeated"] == 2 + 2


def test_what_is_refused_is_durable_before_it_is_acknowledged(tmp_path: Path) -> None:
    inlet = Script(tmp_path, [[*records("a"), Refused("it smells", Record(b"?")), *records("b")]])
    run(tmp_path, inlet)
    assert values(tmp_path) == [b"a", b"b"]
    assert values(tmp_path / "dead-letters") == [b"?"]
    assert len(inlet.acknowledged) == 1


def test_stopping_at_what_is_refused_acknowledges_nothing(tmp_path: Path) -> None:
    inlet = Script(tmp_path, [[*records("a"), Refused("it smells", Record(b"?"))]])
    with pytest.raises(SourceError, match="a record was refused: it smells"):
        run(tmp_path, inlet, stop_at_bad=True)
    assert inlet.acknowledged == []
    assert values(tmp_path) == [b"a"]
    assert values(tmp_path / "dead-letters") == [b"?"]
    assert read_status(tmp_path)["state"] == "failed"


def test_what_the_inlet_still_has_at_the_end_is_kept(tmp_path: Path) -> None:
    left = [*records("z"), Refused("half of it", Record(b"ha"))]
    run(tmp_path, Script(tmp_path, [records("a")], left))
    assert values(tmp_path) == [b"a", b"z"]
    assert values(tmp_path / "dead-letters") == [b"ha"]


def test_a_full_disk_is_waited_for_and_leaves_no_half_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half of a block and no more, three times; then there is room."""
    real, failures = write_all, [3]

    def full(handle: int, data: Any) -> None:
        if failures[0] and b"second" in bytes(data):
            failures[0] -= 1
            real(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle, data)

    monkeypatch.setattr(log_module, "write_all", full)
    inlet = Script(tmp_path, [records("first"), records("second"), records("third")])
    run(tmp_path, inlet)
    assert failures == [0]
    assert values(tmp_path) == [b"first", b"second", b"third"]
    assert inlet.acknowledged == [(1, 1), (2, 2), (3, 3)]


def test_dead_letters_at_their_bound_stop_the_receiver_until_a_person_settles_them(tmp_path: Path) -> None:
    """Nothing is dropped for want of room, good or bad; what was settled goes, and the rest is received."""
    small = LogSettings(max_bytes=2000, segment_bytes=500, keep_s=3600, window=0)
    bad: list[list[Received]] = [[Refused("it is bad", Record(b"x" * 300))] for _ in range(8)]
    inlet = Script(tmp_path, [*bad, records("good")])
    with ReceiverLog(tmp_path) as log, ReceiverLog(tmp_path / "dead-letters", small) as dead:
        pump = Pump(inlet, log, dead, Status(tmp_path), lambda: True)
        thread = threading.Thread(target=pump.run, daemon=True)
        thread.start()
        letters = LogReader(tmp_path / "dead-letters")
        until(lambda: read_status(tmp_path).get("state") == "full")
        assert read_status(tmp_path)["full_of"] == "dead letters"
        assert not inlet.empty
        assert letters.durable == inlet.given
        letters.settle(letters.durable)
        until(lambda: inlet.empty)
        pump.stopping = True
        thread.join(30)
    assert values(tmp_path) == [b"good"]
    assert (letters.durable, pump.status.counts["refused"]) == (8, 8)
    assert letters.first > 0, "nothing that was settled has gone"


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
