"""A standby that waits: by its own clock only, for beats that stop, and not for a checkpoint that is another's now."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tallystick.errors import CheckpointError, FencedError
from tallystick.journal import Journal, MemoryStore
from tallystick.journal.lease import Beat, Leases
from tallystick.spark import leading
from tallystick.spark.leading import Leadership

WHO = {"host": "here", "pid": 1}
PATIENCE_S = 0.4
NO_SPARK: Any = None
"""Only a leader that beats asks Spark anything."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(leading, "BEAT_S", 0.05)
    monkeypatch.setattr(leading, "POLL_S", 0.02)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    Journal(made).identify("led")
    return made


class Leader:
    """Beats in a thread until it is stopped."""

    def __init__(self, store: MemoryStore) -> None:
        self.leases = Leases(store)
        self.term = self.leases.claim(WHO)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        number = 0
        while self.term is not None and not self._stopped.wait(0.05):
            number += 1
            self.leases.beat(Beat(self.term, number), WHO)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture
def leader(store: MemoryStore) -> Iterator[Leader]:
    made = Leader(store)
    yield made
    made.stop()


class Standby:
    """Waits in a thread, and keeps what it was told and how it ended."""

    def __init__(self, store: MemoryStore) -> None:
        self.leadership = Leadership(store, {"host": "there", "pid": 2}, NO_SPARK)
        self.told: list[str] = []
        self.ended: list[bool | Exception] = []
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.ended.append(self.leadership.wait(self.told.append))
        except CheckpointError as failure:
            self.ended.append(failure)

    def term(self) -> int | None:
        return self.leadership.term

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_it_waits_while_the_leader_beats_and_takes_over_when_that_stops(store: MemoryStore, leader: Leader) -> None:
    time.sleep(0.1)
    standby = Standby(store)
    time.sleep(3 * PATIENCE_S)
    assert standby.term() is None
    leader.stop()
    standby.join()
    assert standby.ended == [True]
    assert standby.term() == 2
    assert standby.told[0] == "standby: led by process 1 on here, term 1"
    assert leader.leases.superseded(1)


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0], ids=["behind", "ahead"])
def test_the_time_of_day_does_not_matter(
    store: MemoryStore, leader: Leader, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    time.sleep(0.1)
    standby = Standby(store)
    time.sleep(2 * PATIENCE_S)
    assert standby.term() is None, "a leader that beats is alive, whatever the clock says"
    leader.stop()
    standby.join()
    assert standby.ended == [True]


def test_of_two_standbys_one_has_the_term(store: MemoryStore) -> None:
    """Nobody beats here, so the second one takes over from the first: that is what a dead winner looks like."""
    standbys = Standby(store), Standby(store)
    for standby in standbys:
        standby.join()
    winner, other = sorted(standbys, key=lambda standby: standby.term() or 0)
    assert (winner.term(), other.term()) == (1, 2)
    other.leadership.check()
    with pytest.raises(FencedError, match="another driver leads this job now"):
        winner.leadership.check()


def test_a_leader_that_was_asked_to_stop_is_not_replaced(store: MemoryStore, leader: Leader) -> None:
    time.sleep(0.1)
    standby = Standby(store)
    leader.leases.request_stop(1, WHO)
    leader.stop()
    standby.join()
    assert standby.ended == [False]
    assert leader.leases.term() == 1


def test_a_checkpoint_that_was_replaced_meanwhile_is_not_taken_over(store: MemoryStore, leader: Leader) -> None:
    time.sleep(0.1)
    standby = Standby(store)
    time.sleep(0.1)
    store.delete("job.json")
    Journal(store).identify("other")
    leader.stop()
    standby.join()
    [failure] = standby.ended
    assert "was deleted or replaced while this standby waited" in str(failure)
    assert leader.leases.term() == 1
