"""Terms and beats: one leader at a time, whatever the clocks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.errors import JournalCorruptError
from tallystick.journal import MemoryStore, Store
from tallystick.journal.lease import TERMS_KEPT, Beat, Leases
from tallystick.journal.posix import PosixStore

WHO = {"host": "here", "pid": 1}


@pytest.fixture(params=["memory", "posix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else PosixStore(tmp_path / "journal")


def test_of_two_that_want_the_same_term_one_has_it(store: Store) -> None:
    first, second = Leases(store), Leases(store)
    assert first.claim(WHO, after=0) == 1
    assert second.claim(WHO, after=0) is None
    assert second.claim(WHO, after=1) == 2
    assert first.superseded(1)
    assert not second.superseded(2)


def test_without_a_wish_the_next_free_term_is_claimed(store: Store) -> None:
    assert [Leases(store).claim(WHO) for _ in range(3)] == [1, 2, 3]
    assert Leases(store).term() == 3
    assert Leases(store).holder(3) == {**WHO, "term": 3}


def test_beats_replace_each_other_and_a_claim_removes_those_of_before(store: Store) -> None:
    leases = Leases(store)
    leases.claim(WHO)
    assert leases.newest() is None
    for number in (1, 2, 3):
        leases.beat(Beat(1, number), WHO)
    assert leases.newest() == Beat(1, 3)
    assert len(store.list("beats")) == 1
    leases.claim(WHO)
    assert leases.newest() is None


def test_a_beat_of_an_earlier_term_is_not_the_newest(store: Store) -> None:
    """A leader that was deposed may beat once more before it looks."""
    leases = Leases(store)
    leases.claim(WHO)
    leases.claim(WHO)
    leases.beat(Beat(2, 1), WHO)
    leases.beat(Beat(1, 99), WHO)
    assert leases.newest() == Beat(2, 1)


def test_terms_stay_bounded(store: Store) -> None:
    for _ in range(TERMS_KEPT + 20):
        Leases(store).claim(WHO)
    assert len(store.list("terms")) == TERMS_KEPT + 1
    assert Leases(store).term() == TERMS_KEPT + 20


@pytest.mark.parametrize("key", ["terms/mine.json", "beats/0000001.json"])
def test_a_foreign_file_is_named(store: Store, key: str) -> None:
    store.put_if_absent(key, b"{}")
    with pytest.raises(JournalCorruptError, match="is no file of the journal: move it away"):
        _ = Leases(store).term(), Leases(store).newest()
