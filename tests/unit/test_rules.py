"""Rules in the journal: put once, found again, checked, pruned; and which ones an epoch may see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import CheckpointError, ForeignCheckpointError, JournalCorruptError, JournalError
from tallystick.journal.posix import PosixStore
from tallystick.journal.rules import RuleSet, RuleSets
from tallystick.journal.store import Store
from tallystick.records import Json, SourceOffsets
from tallystick.spark.broadcast import Rules, packed
from tallystick.spark.rulebook import Declared, Rulebook

NO_SPARK: Any = None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return PosixStore(tmp_path / "checkpoint" / "tallystick")


@pytest.fixture
def sets(store: Store) -> RuleSets:
    return RuleSets(store)


def rules(epoch: int, offset: Json = None, **held: str) -> RuleSet:
    return RuleSet("limits", epoch, {"offset": epoch} if offset is None else offset, held)


class TestRuleSets:
    def test_the_first_one_stands(self, sets: RuleSets) -> None:
        assert sets.put(rules(3, a="1")).rules == {"a": "1"}
        assert sets.put(rules(3, a="2")).rules == {"a": "1"}

    def test_the_newest_up_to_an_epoch_counts(self, sets: RuleSets) -> None:
        for epoch in (2, 5):
            sets.put(rules(epoch, a=str(epoch)))
        sets.put(RuleSet("other", 4, None, {}))
        found = [sets.newest("limits", epoch) for epoch in (1, 2, 4, 5, 9)]
        assert [None if each is None else each.epoch for each in found] == [None, 2, 2, 5, 5]
        assert (sets.states(), sets.epochs("limits")) == (["limits", "other"], [2, 5])

    def test_what_no_epoch_can_need_is_pruned_and_the_rest_is_not(self, sets: RuleSets) -> None:
        for epoch in (1, 4, 8, 20):
            sets.put(rules(epoch))
        sets.prune("limits", 10)
        assert sets.epochs("limits") == [8, 20]
        sets.prune("limits", 1000)
        assert sets.epochs("limits") == [20], "the newest one counts for ever"

    def test_the_hash_is_over_the_rules_whatever_their_order(self) -> None:
        one, other = RuleSet("limits", 1, 5, {"a": "1", "b": "2"}), RuleSet("x", 2, 6, {"b": "2", "a": "1"})
        assert one.digest == other.digest != RuleSet("limits", 1, 5, {"a": "1", "b": "3"}).digest

    def test_what_was_renamed_changed_or_is_foreign_is_named(self, sets: RuleSets, store: Store) -> None:
        sets.put(rules(3, a="1"))
        data = store.read(rules(3).key)
        assert data is not None
        store.put_if_absent("rules/000000000004.limits.json", data)
        with pytest.raises(JournalCorruptError, match="holds the rules of 'limits' at epoch 3: was it renamed"):
            sets.newest("limits", 4)
        store.delete("rules/000000000004.limits.json")
        store.put_if_absent("rules/000000000004.limits.json", data[:-20])
        with pytest.raises(JournalCorruptError, match="is torn or truncated"):
            sets.newest("limits", 4)
        store.put_if_absent("rules/notes.txt", b"")
        with pytest.raises(JournalCorruptError, match="is no file of the journal"):
            sets.epochs("limits")

    def test_an_answer_that_got_lost_is_settled_by_reading(
        self, sets: RuleSets, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = store.put_if_absent

        def lost(key: str, data: bytes) -> bool:
            real(key, data)
            raise JournalError("no answer")

        monkeypatch.setattr(store, "put_if_absent", lost)
        assert sets.put(rules(1, a="1")).rules == {"a": "1"}
        monkeypatch.setattr(store, "put_if_absent", lambda *_: (_ for _ in ()).throw(JournalError("no answer")))
        with pytest.raises(JournalError, match="no answer"):
            sets.put(rules(2))


class Control:
    """A broadcast state whose control stream is a list: each row is a key with its rule."""

    name = "limits"

    def __init__(self, rows: Sequence[tuple[str, str | None]]) -> None:
        self.rows = rows
        self.asked: list[tuple[Json, Json]] = []
        self.source: Any = self

    def load_range(self, _: Any, start: Json, end: Json, log: Any) -> Any:
        self.asked.append((start, end))
        return self.rows[start or 0 : end]

    def changes(self, rows: Any) -> Any:
        return iter(rows)


class TestRulebook:
    @pytest.fixture
    def offsets(self, tmp_path: Path) -> Path:
        """The control stream is the second source: one row more in each epoch, none in the third."""
        folder = tmp_path / "checkpoint" / "offsets"
        folder.mkdir(parents=True)
        for epoch, end in enumerate((1, 2, 2, 3)):
            (folder / str(epoch)).write_text(f"v1\n{{}}\n{{}}\n{end}")
        return folder

    def book(self, tmp_path: Path, control: Any) -> Rulebook:
        checkpoint = tmp_path / "checkpoint"
        return Rulebook([Declared(control, 1)], str(checkpoint), PosixStore(checkpoint / "tallystick"))

    def seen(self, book: Rulebook, epoch: int, end: int) -> dict[str, str]:
        return dict(book.at(NO_SPARK, epoch, SourceOffsets("d", ({}, end)))["limits"][0].rules)

    def test_rows_are_read_once_and_a_replay_does_not_ask(self, tmp_path: Path, offsets: Path) -> None:
        control = Control([("a", "1"), ("b", "2"), ("a", None)])
        book = self.book(tmp_path, control)
        assert [self.seen(book, epoch, end) for epoch, end in enumerate((1, 2, 2, 3))] == [
            {"a": "1"},
            {"a": "1", "b": "2"},
            {"a": "1", "b": "2"},
            {"b": "2"},
        ]
        assert control.asked == [(None, 1), (1, 2), (2, 3)]
        changed = Control([("z", "9")] * 3)
        for epoch, end, expected in ((3, 3, {"b": "2"}), (2, 2, {"a": "1", "b": "2"}), (0, 1, {"a": "1"})):
            assert self.seen(self.book(tmp_path, changed), epoch, end) == expected
        assert changed.asked == []

    def test_two_drivers_see_the_same(self, tmp_path: Path, offsets: Path) -> None:
        late = self.book(tmp_path, Control([("a", "2")]))
        assert self.seen(self.book(tmp_path, Control([("a", "1")])), 0, 1) == {"a": "1"}
        assert self.seen(late, 0, 1) == {"a": "1"}

    def test_missing_rules_are_never_taken_for_none(self, tmp_path: Path, offsets: Path) -> None:
        with pytest.raises(CheckpointError, match=r"by epoch 2 .* read up to 2, but the newest rules, in the journal"):
            self.seen(self.book(tmp_path, Control([("a", "1")] * 3)), 3, 3)
        (offsets / "2").unlink()
        with pytest.raises(CheckpointError, match="offsets/2 is gone, which says up to where"):
            self.seen(self.book(tmp_path, Control([("a", "1")] * 3)), 3, 3)

    def test_rules_of_another_line_are_foreign(self, tmp_path: Path, offsets: Path) -> None:
        self.seen(self.book(tmp_path, Control([("a", "1")])), 0, 1)
        with pytest.raises(ForeignCheckpointError, match="was read up to 7, but the newest rules"):
            self.seen(self.book(tmp_path, Control([("a", "1")])), 0, 7)


def test_rules_as_tasks_see_them() -> None:
    held = Rules("d", {'{"a":1}': '{"a":1,"high":2.5}'})
    assert dict(held.by_key[1]) == {"a": 1, "high": 2.5}
    several = Rules("d", {'{"a":1,"b":"x"}': '{"a":1,"b":"x","high":null}'})
    assert several.by_key[1, "x"]["high"] is None
    with pytest.raises(TypeError):
        held.by_key[1] = {}  # type: ignore[index]
    assert packed({}, "d").startswith("d:")
