"""The audit trail loses nothing and counts nothing twice, whatever dies in the middle of a roll-up, and stays small."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import JournalCorruptError, JournalError, NewerCheckpointError
from tallystick.journal import Journal, MemoryStore, Note, Store, audit, audit_lines, horizon, roll_up
from tallystick.journal.posix import PosixStore
from tallystick.records import (
    Attempt,
    Decision,
    Fingerprint,
    Json,
    Parts,
    Record,
    Resolution,
    SourceOffsets,
    Vote,
)

Entry = tuple[int, int, str]
FOLDERS = ("attempts", "audit", "generations", "notes", "resolutions")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 3 epochs, merged by 3: everything happens within a few epochs."""
    monkeypatch.setattr(audit, "EPOCHS_PER_SEGMENT", 3)
    monkeypatch.setattr(audit, "SEGMENTS_PER_MERGE", 3)


class Died(BaseException):
    """The process is gone."""


class Hooked(MemoryStore):
    """Calls ``before`` ahead of each operation, with its name."""

    def __init__(self, data: dict[str, bytes], before: Callable[[str], None]) -> None:
        super().__init__()
        self._data = data
        self.before = before

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.before("put")
        return super().put_if_absent(key, data)

    def read(self, key: str) -> bytes | None:
        self.before("read")
        return super().read(key)

    def list(self, folder: str) -> list[str]:
        self.before("list")
        return super().list(folder)

    def delete(self, key: str) -> None:
        self.before("delete")
        super().delete(key)


class Countdown:
    """Does something once, ahead of the operation of that number; ``spent`` says whether it came to that."""

    def __init__(self, number: int, act: Callable[[], object], operations: tuple[str, ...]) -> None:
        self.left = number
        self.act = act
        self.operations = operations
        self.spent = False

    def __call__(self, operation: str) -> None:
        if operation not in self.operations or self.spent:
            return
        if self.left == 0:
            self.spent = True
            self.act()
        self.left -= 1


def die() -> None:
    raise Died


class Life:
    """A job's life, with everything that it ever decided and found, to compare the audit trail with."""

    def __init__(self, store: Store | None = None, epochs: int = 3) -> None:
        self.store = store if store is not None else MemoryStore()
        self.epochs = epochs
        self.entries: list[Entry] = []
        self.next = 0

    @property
    def data(self) -> dict[str, bytes]:
        assert isinstance(self.store, MemoryStore)
        return self.store._data

    def live(self, epochs: int, rolling_up: bool = True) -> None:
        journal = Journal(self.store)
        generation = journal.claim_generation({}, first_epoch=self.next)
        for epoch in range(self.next, self.next + epochs):
            if rolling_up and epoch > 0:
                roll_up(journal, settled=epoch - 1, epochs=self.epochs)
            self.epoch(journal, epoch, generation)
        self.next += epochs

    def epoch(self, journal: Journal, epoch: int, generation: int) -> None:
        for rival in journal.rivals(generation):
            self.decide(journal, Record(Attempt(epoch, rival), Decision.ABORT, reason="fenced"))
        votes = (Vote("files", 0, Fingerprint(epoch, epoch), {"dir": "x" * 20}),)
        self.decide(journal, Record(Attempt(epoch, generation), Decision.COMMIT, votes=votes))
        if epoch % 4 == 1:
            journal.note(Note(Attempt(epoch, generation), "not deterministic", {"sinks": {}}))
            self.entries.append((epoch, generation, "not deterministic"))
            journal.resolve(epoch, Resolution.REWRITE)

    def decide(self, journal: Journal, record: Record) -> None:
        journal.put(record)
        self.entries.append((record.attempt.epoch, record.attempt.generation, record.decision.value))


def told(store: Store) -> list[Entry]:
    lines = list(audit_lines(Journal(store)))
    return [(line["epoch"], line["generation"], line.get("decision") or line["note"]) for line in lines]


def assert_complete(life: Life, store: Store | None = None) -> None:
    found = told(store or life.store)
    assert sorted(found) == sorted(life.entries), "nothing missing, nothing twice"
    assert found == sorted(found, key=lambda entry: entry[:2]), "in order"


def ending(act: Callable[[], object]) -> str:
    """Done, or stopped because another process took a file away; any other failure is one."""
    try:
        act()
    except JournalError as error:
        if "vanished" in str(error) or "ask again" in str(error):
            return "ask again"
        raise
    return "done"


def files(store: Store) -> dict[str, int]:
    return {folder: len(store.list(folder)) for folder in FOLDERS}


def grown(starts: tuple[int, ...] = (6, 4, 5, 4)) -> Life:
    """Several generations; the next roll-up makes a segment, deletes records of all kinds and merges."""
    life = Life()
    for epochs in starts:
        life.live(epochs, rolling_up=False)
    return life


def steps_of_a_roll_up(life: Life, rolled: int) -> int:
    """How many writes and deletions the roll-up makes that follows after some others."""
    count = 0

    def add(operation: str) -> None:
        nonlocal count
        count += operation in ("put", "delete")

    data = dict(life.data)
    for number in range(rolled + 1):
        roll_up(Journal(Hooked(data, add if number == rolled else lambda _: None)), settled=life.next - 1, epochs=3)
    return count


@pytest.mark.usefixtures("small")
class TestCrashes:
    @pytest.mark.parametrize("rolled", [0, 1, 2, 3], ids=["first", "second", "merging", "after a merge"])
    def test_a_crash_ahead_of_any_write_of_a_roll_up(self, rolled: int) -> None:
        life = grown()
        steps = steps_of_a_roll_up(life, rolled)
        assert steps > 3
        for number in range(steps + 1):
            data = dict(life.data)
            for _ in range(rolled):
                assert roll_up(Journal(Hooked(data, lambda _: None)), settled=life.next - 1, epochs=3)
            dying = Hooked(data, Countdown(number, die, ("put", "delete")))
            try:
                roll_up(Journal(dying), settled=life.next - 1, epochs=3)
                assert number == steps, "it died where it should"
            except Died:
                pass
            survivor = Hooked(data, lambda _: None)
            assert_complete(life, survivor)
            self.goes_on(life, survivor)

    @staticmethod
    def goes_on(life: Life, store: Store) -> None:
        later = Life(store)
        later.entries, later.next = list(life.entries), life.next
        later.live(9)
        assert_complete(later)
        _, leftovers = audit._segments(Journal(store))
        assert leftovers == [], "the next roll-up removes what a cut merge left"
        assert {name.split(".")[0] for name in store.list("notes")} <= {
            f"{epoch:012d}" for epoch in range(horizon(Journal(store)) + 1, later.next)
        }

    @given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 25)), min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def test_a_life_full_of_crashes(self, starts: list[tuple[int, int]]) -> None:
        life = Life()
        data = life.data
        for epochs, fatal in starts:
            life.live(epochs, rolling_up=False)
            dying = Journal(Hooked(data, Countdown(fatal, die, ("put", "delete"))))
            try:
                while roll_up(dying, settled=life.next - 1, epochs=3):
                    pass
            except Died:
                pass
            assert_complete(life)

    def test_a_reader_beside_a_living_driver(self) -> None:
        """The driver rolls up between any two operations of the reader: all lines, or an error that says to ask again.

        Never fewer lines: they would pass for the truth.
        """
        outcomes = set()
        for rolled in range(4):
            number = 0
            while True:
                life = grown()
                for _ in range(rolled):
                    roll_up(Journal(life.store), settled=life.next - 1, epochs=3)
                driver = Journal(Hooked(life.data, lambda _: None))
                act = Countdown(number, self.rolling(driver, life.next), ("read", "list"))
                outcomes.add(ending(partial(assert_complete, life, Hooked(life.data, act))))
                if not act.spent:
                    break
                number += 1
        assert outcomes == {"done", "ask again"}

    @staticmethod
    def rolling(driver: Journal, epochs: int) -> Callable[[], object]:
        return lambda: roll_up(driver, settled=epochs - 1, epochs=3)

    def test_two_drivers_roll_up_at_once(self) -> None:
        """A zombie does, or stops with an error; whatever it does, the audit trail is complete."""
        for rolled in range(4):
            number = 0
            while True:
                life = grown()
                for _ in range(rolled):
                    roll_up(Journal(life.store), settled=life.next - 1, epochs=3)
                other = Journal(Hooked(life.data, lambda _: None))
                act = Countdown(number, self.rolling(other, life.next), ("put", "delete", "read", "list"))
                ending(self.rolling(Journal(Hooked(life.data, act)), life.next))
                assert_complete(life)
                if not act.spent:
                    break
                number += 1


class TestSize:
    def test_ten_thousand_epochs_at_full_size(self) -> None:
        """Every decision once and in order; as many files after ten thousand epochs as after a few hundred."""
        life = Life(epochs=audit.EPOCHS_PER_SEGMENT)
        journal = Journal(life.store)
        generation = journal.claim_generation({}, first_epoch=0)
        most = 0
        for epoch in range(10_450):
            if epoch % audit.EPOCHS_PER_SEGMENT == 1:
                roll_up(journal, settled=epoch - 1)
                most = max(most, sum(files(life.store).values()))
            life.decide(journal, Record(Attempt(epoch, generation), Decision.COMMIT))
        assert_complete(life)
        assert most < 2 * audit.EPOCHS_PER_SEGMENT + audit.SEGMENTS_PER_MERGE + 10
        names = life.store.list("audit")
        assert names[0] == "000000000000-000000009999.jsonl"
        assert len(names) < 6

    def test_many_starts_leave_a_bounded_number_of_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "GENERATIONS_KEPT", 5)
        life = Life()
        for _ in range(60):
            life.live(3)
        assert_complete(life)
        found = files(life.store)
        assert found["generations"] <= 8
        assert found["attempts"] <= 40
        assert found["notes"] <= 4
        assert found["resolutions"] <= 4

    def test_nothing_is_rolled_up_before_there_are_twice_as_many(self) -> None:
        life = Life()
        life.live(6, rolling_up=False)
        journal = Journal(life.store)
        assert not roll_up(journal, settled=4, epochs=3)
        assert horizon(journal) == -1
        assert roll_up(journal, settled=5, epochs=3)
        assert horizon(journal) == 2
        assert not roll_up(journal, settled=5, epochs=3)

    def test_a_job_that_takes_over_an_old_checkpoint_of_spark(self) -> None:
        """Its first epoch is a large number; the epochs before it were never ours and need no segments."""
        life = Life()
        life.next = 1_000_000
        life.live(12, rolling_up=False)
        journal = Journal(life.store)
        assert roll_up(journal, settled=life.next - 1, epochs=3)
        assert horizon(journal) >= 1_000_000
        assert_complete(life)
        while roll_up(journal, settled=life.next - 1, epochs=3):
            pass
        assert len(life.store.list("attempts")) <= 6
        assert_complete(life)


class TestAborts:
    def life(self) -> Life:
        """Generation 1 is fenced at epoch 4, by generation 2."""
        life = Life()
        life.live(4, rolling_up=False)
        life.live(12, rolling_up=False)
        return life

    def test_an_abort_outlives_the_roll_up(self) -> None:
        life = self.life()
        journal = Journal(life.store)
        while roll_up(journal, settled=life.next - 1, epochs=3):
            pass
        assert horizon(journal) >= 4
        assert [record.attempt for record in journal.records() if record.decision is Decision.ABORT] == [Attempt(4, 1)]
        zombie = Record(Attempt(4, 1), Decision.COMMIT)
        assert Journal(life.store).put(zombie).decision is Decision.ABORT
        assert Journal(life.store).rivals(2) == ()
        assert_complete(life)

    def test_it_is_pruned_when_enough_newer_generations_exist(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "GENERATIONS_KEPT", 3)
        life = self.life()
        for _ in range(8):
            life.live(3)
        attempts = [record.attempt for record in Journal(life.store).records()]
        assert Attempt(4, 1) not in attempts
        assert 1 not in Journal(life.store).generations()
        assert horizon(Journal(life.store)) >= 4, "a zombie that comes so late is stopped by the horizon"
        assert_complete(life)

    def test_a_number_of_a_pruned_generation_is_not_claimed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "GENERATIONS_KEPT", 0)
        life = Life()
        for _ in range(6):
            life.live(4)
        assert Journal(life.store).claim_generation({}, first_epoch=0) == 7


class TestLines:
    RECORD = Record(
        Attempt(3, 2),
        Decision.COMMIT,
        votes=(
            Vote("files", 0, Fingerprint(2, 5), {"secret": "path"}),
            Vote("files", 1, Fingerprint(3, 6), {"secret": "path"}),
        ),
        replaces=Parts(frozenset({"files"})),
        read=SourceOffsets("ab", ({"offset": 5},)),
        facts={"at": 1.0},
    )

    def test_a_line_has_everything_but_the_committables(self) -> None:
        line = audit.audit_line(self.RECORD)
        assert line["sinks"] == {"files": "5:000000000000000b"}
        assert line["replaces"] == {"sinks": ["files"], "slices": []}
        assert line["read"] == {"digest": "ab", "offsets": [{"offset": 5}]}
        assert line["facts"] == {"at": 1.0}
        assert "secret" not in json.dumps(line)

    def test_lines_are_the_same_before_and_after_the_roll_up(self) -> None:
        life = grown()
        before = list(audit_lines(Journal(life.store)))
        while roll_up(Journal(life.store), settled=life.next - 1, epochs=3):
            pass
        assert list(audit_lines(Journal(life.store))) == before

    @pytest.mark.parametrize("text", ["a\u2028b", "\x85", "\x1c", "\r\n", "\udcff", "\U0001f9fe", '"\\'])
    def test_texts_that_look_like_line_ends_or_are_no_unicode(self, text: str) -> None:
        store = MemoryStore()
        for epoch in range(6):
            Journal(store).put(Record(Attempt(epoch, 1), Decision.ABORT, reason=text))
        assert roll_up(Journal(store), settled=5, epochs=3)
        assert [line["reason"] for line in audit_lines(Journal(store))] == [text] * 6

    def test_an_empty_journal_has_no_lines(self) -> None:
        assert list(audit_lines(Journal(MemoryStore()))) == []
        assert horizon(Journal(MemoryStore())) == -1


class TestDamage:
    KEY = "audit/000000000000-000000000002.jsonl"

    @pytest.fixture(params=["memory", "posix"])
    def life(self, request: pytest.FixtureRequest, tmp_path: Path) -> Life:
        life = Life(MemoryStore() if request.param == "memory" else PosixStore(tmp_path))
        life.live(13)
        assert len(life.store.list("audit")) == 3
        return life

    def data(self, life: Life) -> bytes:
        data = life.store.read(self.KEY)
        assert data is not None
        return data

    def damage(self, life: Life, data: bytes, key: str = KEY) -> None:
        life.store.delete(key)
        life.store.put_if_absent(key, data)

    def assert_told(self, life: Life, error: type[Exception] = JournalCorruptError, key: str = KEY) -> None:
        with pytest.raises(error) as caught:
            list(audit_lines(Journal(life.store)))
        assert life.store.locate(key) in str(caught.value)
        assert getattr(caught.value, "details", {})["file"] == life.store.locate(key)

    def test_a_segment_that_is_cut_at_any_byte(self, life: Life) -> None:
        data = self.data(life)
        step = 1 if isinstance(life.store, MemoryStore) else 37
        for length in range(0, len(data) - 1, step):  # the last byte is the end of a line: nothing is missing
            self.damage(life, data[:length])
            self.assert_told(life)

    def test_a_segment_with_any_bit_flipped(self, life: Life) -> None:
        data = self.data(life)
        step = 1 if isinstance(life.store, MemoryStore) else 41
        for position in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            self.damage(life, bytes(flipped))
            self.assert_told(life, (JournalCorruptError, NewerCheckpointError))  # type: ignore[arg-type]

    def test_a_segment_with_a_line_less(self, life: Life) -> None:
        lines = self.data(life).splitlines(keepends=True)
        self.damage(life, b"".join(lines[1:]))
        self.assert_told(life)

    def test_a_segment_of_a_newer_version(self, life: Life) -> None:
        *lines, last = self.data(life).splitlines(keepends=True)
        seal: Json = {**json.loads(last), "version": 2}
        self.damage(life, b"".join([*lines, json.dumps(seal).encode()]))
        self.assert_told(life, NewerCheckpointError)

    def test_a_renamed_segment(self, life: Life) -> None:
        data, later = self.data(life), "audit/000000000009-000000000011.jsonl"
        self.damage(life, data, later)
        self.assert_told(life, key=later)

    @pytest.mark.parametrize("name", ["readme.txt", "0-2.jsonl", "000000000002-000000000000.jsonl", ".DS_Store.jsonl"])
    def test_a_file_that_does_not_belong_there(self, tmp_path: Path, name: str) -> None:
        store = PosixStore(tmp_path)
        store.put_if_absent("job.json", b"")
        (tmp_path / "audit").mkdir()
        (tmp_path / "audit" / name).write_bytes(b"")
        for read in (horizon, lambda journal: list(audit_lines(journal))):
            with pytest.raises(JournalCorruptError, match="no file of the audit trail") as caught:
                read(Journal(store))
            assert caught.value.details["file"] == str(tmp_path / "audit" / name)

    def test_a_segment_that_is_gone_leaves_a_gap(self, life: Life) -> None:
        gone = "audit/000000000003-000000000005.jsonl"
        life.store.delete(gone)
        self.assert_told(life, key=gone)

    def test_a_damaged_segment_is_not_merged_away(self, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "EPOCHS_PER_SEGMENT", 3)
        monkeypatch.setattr(audit, "SEGMENTS_PER_MERGE", 3)
        self.damage(life, self.data(life)[:-9])
        with pytest.raises(JournalCorruptError):
            roll_up(Journal(life.store), settled=50, epochs=3)
        assert self.KEY.partition("/")[2] in life.store.list("audit")
