"""How many slices the next epoch gets, by what the last ones were; and the first one, by what was decided."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.journal import Journal, MemoryStore
from tallystick.records import Attempt, Decision, Fingerprint, Parts, Record, Vote
from tallystick.spark import slicing
from tallystick.spark.batching import Seen
from tallystick.spark.slicing import EPOCHS_REMEMBERED, SLICES, SMALL_BYTES, SMALL_ROWS, UNGROUPED, Slicing

SMALL, MANY_ROWS, MANY_BYTES = [Seen(10, 1000)] * 4, [Seen(SMALL_ROWS, 100)] * 2, [Seen(1, SMALL_BYTES)] * 2


class Session:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.conf = self
        self.told: list[str] = []

    def set(self, name: str, value: str) -> None:
        assert name == SLICES
        self.told.append(value)


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "processors", lambda: 2)


def told(slots: int | None, epochs: list[list[Seen]], follows: bool = True, named: bool = False) -> list[str]:
    session: Any = Session()
    chosen = Slicing(slots, follows, named)
    for epoch in epochs:
        chosen.saw(session, epoch)
    return list(session.told)


def test_small_epochs_get_as_many_as_processors_and_a_large_one_ends_that() -> None:
    assert told(8, [SMALL] * (EPOCHS_REMEMBERED - 1)) == ["8"], "one small epoch says little"
    assert told(8, [SMALL] * 9) == ["8", "2"], "told when it changes"
    for large in (MANY_ROWS, MANY_BYTES):
        assert told(8, [*[SMALL] * 6, large, *[SMALL] * 3]) == ["8", "2", "8"]
        assert told(8, [*[SMALL] * 6, large, *[SMALL] * 4]) == ["8", "2", "8", "2"]


def test_no_more_than_slots_and_nothing_where_it_is_not_ours_to_say() -> None:
    assert told(1, [SMALL] * 9) == ["1"]
    assert told(None, [SMALL] * 9) == told(8, [SMALL] * 9, follows=False) == []


def test_slices_that_a_query_names_share_tasks_unless_an_epoch_is_large() -> None:
    many = str(UNGROUPED)
    assert told(8, [*[SMALL] * 6, MANY_ROWS, *[SMALL] * 4], named=True) == ["8", "2", many, "2"]
    assert told(8, [MANY_BYTES] * 3, named=True) == [many]
    chosen = Slicing(8, True, named=True)
    assert (chosen.grouped, chosen.tasks) == (True, 8)


@pytest.mark.parametrize(("slots", "follows"), [(8, False), (None, True)])
def test_named_slices_are_tasks_where_the_planner_does_not_listen(slots: int | None, follows: bool) -> None:
    chosen = Slicing(slots, follows, named=True)
    assert (chosen.grouped, chosen.tasks) == (False, None)
    assert told(slots, [SMALL] * 9, follows, named=True) == []


def committed(epoch: int, generation: int, slices: range, replaces: Parts | None = None) -> Record:
    votes = tuple(Vote("files", number, Fingerprint(1, number), f"t{number}") for number in slices)
    return Record(Attempt(epoch, generation), Decision.COMMIT, votes=votes, replaces=replaces)


def test_the_first_epoch_after_a_start_has_the_slices_that_were_decided() -> None:
    journal = Journal(MemoryStore())
    assert Slicing(8, True).first(journal) is None
    journal.put(committed(3, 1, range(8)))
    journal.put(committed(4, 1, range(2)))
    assert Slicing(8, True).first(journal) == 2
    journal.put(Record(Attempt(5, 1), Decision.ABORT, reason="failed"))
    assert Slicing(8, True).first(journal) == 2
    journal.put(committed(5, 2, range(4)))
    journal.put(committed(5, 3, range(1, 2), Parts(slices=frozenset({("files", 1)}))))
    assert Slicing(8, True).first(journal) == 4, "one slice was written again, of four"
    assert Slicing(None, True).first(journal) is None
    assert Slicing(8, True, named=True).first(journal) is None, "their number is not ours"
