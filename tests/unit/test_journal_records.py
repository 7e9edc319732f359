"""Every file of the journal is whole and ours, or an error that names it: never skipped, never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import (
    ForeignCheckpointError,
    JournalCorruptError,
    JournalError,
    NewerCheckpointError,
    TallystickError,
)
from tallystick.journal import Journal, MemoryStore, Note, Store
from tallystick.journal.codec import VERSION, decode, encode
from tallystick.journal.posix import PosixStore
from tallystick.records import Attempt, Decision, Fingerprint, Json, Record, Resolution, SourceOffsets, Vote

ME = Attempt(12, 3)
KEY = f"attempts/{ME}.json"
RECORD = Record(
    ME,
    Decision.COMMIT,
    votes=(Vote("files", 0, Fingerprint(5, 77), {"dir": "a – b"}),),
    read=SourceOffsets("ab" * 16, ({"offset": 5}, None)),
    facts={"at": 1.5},
)


@dataclass
class Place:
    """Somewhere to keep a journal; ``open`` is what a new driver does, ``damage`` what a disk does."""

    open: Callable[[], Journal]
    damage: Callable[[str, bytes], None]

    @property
    def store(self) -> Store:
        return self.open().store


@pytest.fixture(params=["memory", "posix"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        store = MemoryStore()

        def overwrite(key: str, data: bytes) -> None:
            store.delete(key)
            store.put_if_absent(key, data)

        return Place(lambda: Journal(store), overwrite)

    def write(key: str, data: bytes) -> None:
        path = tmp_path / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    return Place(lambda: Journal(PosixStore(tmp_path)), write)


@dataclass(frozen=True)
class Kind:
    """One kind of file: how it comes to be, and every way of reading it."""

    key: str
    write: Callable[[Journal], object]
    readers: tuple[Callable[[Journal], object], ...]


def _claim_three(journal: Journal) -> None:
    for _ in range(3):
        journal.claim_generation({"pid": 1}, first_epoch=0)


KINDS = {
    "job": Kind("job.json", lambda journal: journal.identify("pv"), (Journal.identity, lambda j: j.identify(None))),
    "generation": Kind(
        "generations/0000003.json",
        _claim_three,
        (Journal.check, lambda j: j.rivals(9), lambda j: j.recall(Attempt(12, 9))),
    ),
    "attempt": Kind(
        KEY,
        lambda journal: journal.put(RECORD),
        (Journal.check, Journal.records, lambda j: j.records(12), lambda j: j.rivals(9), lambda j: j.put(RECORD)),
    ),
    "note": Kind(
        f"notes/{ME}.not-deterministic.json",
        lambda journal: journal.note(Note(ME, "not deterministic", {"sinks": {}})),
        (lambda journal: list(journal.notes()),),
    ),
    "resolution": Kind(
        "resolutions/000000000012.json",
        lambda journal: journal.resolve(12, Resolution.REWRITE),
        (lambda journal: journal.resolution(12),),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def whole(place: Place, kind: Kind) -> bytes:
    kind.write(place.open())
    data = place.store.read(kind.key)
    assert data is not None
    return data


def assert_told(place: Place, kind: Kind, error: type[TallystickError] = JournalCorruptError) -> None:
    for read in kind.readers:
        with pytest.raises(error) as caught:
            read(place.open())
        where = place.store.locate(kind.key)
        assert where in str(caught.value)
        assert caught.value.details["file"] == where


@every_kind
def test_a_whole_file_is_read(place: Place, kind: Kind) -> None:
    whole(place, kind)
    for read in kind.readers:
        read(place.open())


@every_kind
def test_a_file_that_is_cut_at_any_byte(place: Place, kind: Kind) -> None:
    data = whole(place, kind)
    step = 1 if isinstance(place.store, MemoryStore) else 7
    for length in range(0, len(data) - 1, step):  # the last byte is the end of the line: without it nothing is missing
        place.damage(kind.key, data[:length])
        with pytest.raises(JournalCorruptError, match="torn or truncated") as caught:
            kind.readers[0](place.open())
        assert caught.value.details["file"] == place.store.locate(kind.key)
    place.damage(kind.key, b"")
    assert_told(place, kind)


@every_kind
def test_a_file_with_any_bit_flipped(place: Place, kind: Kind) -> None:
    data = whole(place, kind)
    in_memory = isinstance(place.store, MemoryStore)
    for position in range(len(data)):
        for bit in range(8) if in_memory else (position % 8,):  # a disk is slow and shares the reader
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            place.damage(kind.key, bytes(flipped))
            with pytest.raises((JournalCorruptError, NewerCheckpointError)) as caught:
                kind.readers[0](place.open())
            assert caught.value.details["file"] == place.store.locate(kind.key)


FOREIGN: dict[str, Json] = {
    "null": None,
    "a list": [],
    "a text": "COMMIT",
    "another program's": {"decision": "COMMIT"},
    "no version": {"tallystick": "attempt", "crc32": "0", "body": {}},
    "version 0": {"tallystick": "attempt", "version": 0, "crc32": "0", "body": {}},
    "a text as version": {"tallystick": "attempt", "version": "2", "crc32": "0", "body": {}},
    "true as version": {"tallystick": "attempt", "version": True, "crc32": "0", "body": {}},
    "no body": {"tallystick": "attempt", "version": 1, "crc32": "0"},
    "no checksum": {"tallystick": "attempt", "version": 1, "body": {}},
}


@every_kind
@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_json_of_others(place: Place, kind: Kind, content: Json) -> None:
    whole(place, kind)
    place.damage(kind.key, json.dumps(content).encode())
    assert_told(place, kind)


@every_kind
@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x00" * 512, b"[" * 100_000, b"{}{}", b"NaN"])
def test_what_is_no_json_at_all(place: Place, kind: Kind, data: bytes) -> None:
    whole(place, kind)
    place.damage(kind.key, data)
    assert_told(place, kind)


@every_kind
@pytest.mark.parametrize("body", [None, [], "text", {}, {"attempt": 5, "job": None, "choice": "perhaps", "epoch": "x"}])
def test_a_whole_file_whose_body_makes_no_sense(place: Place, kind: Kind, body: Json) -> None:
    """The checksum is right, so only the reader can find it. A body of null must not pass for an absent file."""
    name = json.loads(whole(place, kind))["tallystick"]
    place.damage(kind.key, encode(name, body))
    assert_told(place, kind)


@every_kind
@pytest.mark.parametrize("envelope", [{"body": {}, "crc32": "0"}, {}], ids=["same shape", "other shape"])
def test_a_newer_version_is_told_apart_from_damage(place: Place, kind: Kind, envelope: Json) -> None:
    name = json.loads(whole(place, kind))["tallystick"]
    newer = {"tallystick": name, "version": VERSION + 1, **envelope}
    place.damage(kind.key, json.dumps(newer).encode())
    assert_told(place, kind, NewerCheckpointError)
    with pytest.raises(NewerCheckpointError, match=r"format 2, this one reads up to 1.*pip install --upgrade"):
        kind.readers[0](place.open())


@every_kind
def test_a_file_of_another_kind_in_its_place(place: Place, kind: Kind) -> None:
    body = json.loads(whole(place, kind))["body"]
    place.damage(kind.key, encode("letter", body))
    assert_told(place, kind)
    with pytest.raises(JournalCorruptError, match="of kind 'letter'"):
        kind.readers[0](place.open())


RENAMED = {
    "generation": ("generations/0000003.json", "generations/0000004.json"),
    "attempt": (KEY, f"attempts/{Attempt(13, 3)}.json"),
    "note": (KINDS["note"].key, f"notes/{Attempt(13, 3)}.not-deterministic.json"),
    "note of another kind": (KINDS["note"].key, f"notes/{ME}.abandoned.json"),
    "resolution": (KINDS["resolution"].key, "resolutions/000000000013.json"),
}


@pytest.mark.parametrize("case", RENAMED)
def test_a_renamed_file(place: Place, case: str) -> None:
    kind = KINDS[case.split()[0]]
    old, new = RENAMED[case]
    data = whole(place, kind)
    place.store.delete(old)
    place.damage(new, data)
    readers = (lambda j: j.resolution(13),) if case == "resolution" else kind.readers[:1]
    assert_told(place, Kind(new, kind.write, readers))


FOREIGN_NAMES = {
    "attempts": (".DS_Store", f"{ME}.json.bak", f"{ME}", "0000000000012.0000003.json", "12.3.json", "readme.txt"),
    "generations": ("lost+found", "3.json", "00000003.json", "0000003", "0000003.jsonx"),
    "notes": (".nfs00001", "note.json", "12.json"),
    "resolutions": ("x.json", "000000000012"),
}


@pytest.mark.parametrize(("folder", "name"), [(f, name) for f, names in FOREIGN_NAMES.items() for name in names])
def test_a_file_that_does_not_belong_there(place: Place, folder: str, name: str) -> None:
    for kind in KINDS.values():
        kind.write(place.open())
    place.damage(f"{folder}/{name}", b"{}")
    readers: dict[str, Callable[[Journal], object]] = {
        "attempts": Journal.records,
        "generations": Journal.generations,
        "notes": lambda journal: list(journal.notes()),
        "resolutions": lambda journal: journal.forget_findings(0),
    }
    assert_told(place, Kind(f"{folder}/{name}", lambda _: None, (readers[folder],)))


def test_a_foreign_name_stops_a_start_before_a_generation_is_claimed(place: Place) -> None:
    journal = place.open()
    place.damage("attempts/readme.txt", b"")
    with pytest.raises(JournalCorruptError, match=r"readme\.txt"):
        journal.claim_generation({}, first_epoch=0)
    assert journal.generations() == []


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A folder where the file should be: the one unreadable thing that also the superuser cannot read."""
    for kind in KINDS.values():
        path = tmp_path / "journal" / kind.key
        path.mkdir(parents=True)
    for kind in KINDS.values():
        with pytest.raises(JournalError, match="could not be read") as caught:
            kind.readers[0](Journal(PosixStore(tmp_path / "journal")))
        assert str(tmp_path / "journal") in str(caught.value)


texts = st.text(st.characters(), max_size=6)
bodies = st.dictionaries(
    texts, st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=2)
)


@given(bodies)
def test_any_body_comes_back(body: Json) -> None:
    assert decode("x", encode("x", body), "file") == body
    assert encode("x", body).count(b"\n") == 1, "one line, for cat and grep"
    encode("x", body).decode()


@pytest.mark.parametrize("text", ["\udcff", "a\udc80b", "\u2028", "\x85", "é\udcff日本"])
def test_texts_that_are_no_unicode_come_back(place: Place, text: str) -> None:
    """A reason may hold a file name that is no UTF-8: the ABORT must be written all the same."""
    record = Record(ME, Decision.ABORT, reason=text)
    place.open().put(record)
    assert place.open().records() == (record,)


@given(st.binary(max_size=60))
@settings(max_examples=200)
def test_any_bytes_are_an_error_of_ours(data: bytes) -> None:
    with pytest.raises((JournalCorruptError, NewerCheckpointError)):
        decode("attempt", data, "file")


class TestIdentity:
    def test_nobody_yet(self, place: Place) -> None:
        assert place.open().identity() is None

    def test_the_first_one_owns_it(self, place: Place) -> None:
        mine = place.open().identify("pv")
        assert mine.job == "pv"
        assert place.open().identify("pv") == mine
        assert place.open().identity() == mine

    def test_another_job_is_refused(self, place: Place) -> None:
        mine = place.open().identify("pv")
        with pytest.raises(ForeignCheckpointError, match=r"belongs to the job 'pv', not to 'orders'"):
            place.open().identify("orders")
        assert place.open().identity() == mine

    def test_without_a_name_whoever_owns_it(self, place: Place) -> None:
        mine = place.open().identify("pv")
        assert place.open().identify(None) == mine

    def test_an_unnamed_job_stays_the_same_job(self, place: Place) -> None:
        mine = place.open().identify(None)
        assert place.open().identify(None) == mine
        with pytest.raises(ForeignCheckpointError, match="'unnamed'"):
            place.open().identify("pv")

    def test_two_journals_have_two_ids(self) -> None:
        assert Journal(MemoryStore()).identify("pv").id != Journal(MemoryStore()).identify("pv").id

    def test_racing_starts_agree(self, place: Place) -> None:
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: place.open().identify("pv"), range(8)))
        assert len(found) == 1


class TestGenerations:
    def test_racing_claims_are_all_different(self, place: Place) -> None:
        with ThreadPoolExecutor(8) as pool:
            claimed = list(pool.map(lambda _: place.open().claim_generation({}, first_epoch=0), range(24)))
        assert sorted(claimed) == list(range(1, 25))
        assert place.open().generations() == list(range(1, 25))

    def test_a_claim_says_who_and_where_it_begins(self, place: Place) -> None:
        number = place.open().claim_generation({"host": "a", "pid": 7}, first_epoch=5)
        body = place.open().generation(number)
        assert {"host": "a", "pid": 7, "first_epoch": 5}.items() <= body.items()
        assert place.open().generation(99) is None

    def test_a_number_that_an_attempt_bears_is_never_claimed_again(self, place: Place) -> None:
        """Also if its claim was pruned: two drivers with one number would share their transactions."""
        place.open().put(Record(Attempt(0, 41), Decision.ABORT))
        assert place.open().claim_generation({}, first_epoch=0) == 42


class TestRivals:
    @staticmethod
    def journal(place: Place, *first_epochs: int) -> Journal:
        journal = place.open()
        for epoch in first_epochs:
            journal.claim_generation({}, first_epoch=epoch)
        return journal

    def test_every_earlier_generation_may_be_alive(self, place: Place) -> None:
        assert self.journal(place, 0, 0, 0).rivals(3) == (1, 2)

    def test_newer_generations_are_no_rivals(self, place: Place) -> None:
        assert self.journal(place, 0, 0, 0).rivals(1) == ()

    def test_a_commit_proves_nothing(self, place: Place) -> None:
        journal = self.journal(place, 0, 0)
        journal.put(Record(Attempt(0, 1), Decision.COMMIT))
        assert journal.rivals(2) == (1,)

    @pytest.mark.parametrize(("aborted_at", "alive"), [(4, True), (5, False), (6, False)])
    def test_an_abort_counts_from_the_first_epoch_on(self, place: Place, aborted_at: int, alive: bool) -> None:
        journal = self.journal(place, 5, 0)
        journal.put(Record(Attempt(aborted_at, 1), Decision.ABORT))
        assert journal.rivals(2) == ((1,) if alive else ())

    def test_one_abort_that_is_met_is_enough(self, place: Place) -> None:
        journal = self.journal(place, 5, 0)
        for epoch in (4, 5):
            journal.put(Record(Attempt(epoch, 1), Decision.ABORT))
        assert journal.rivals(2) == ()

    def test_a_pruned_claim_is_no_rival(self, place: Place) -> None:
        journal = self.journal(place, 0, 0)
        journal.store.delete("generations/0000001.json")
        assert journal.rivals(2) == ()

    def test_recall_is_records_and_rivals_at_once(self, place: Place) -> None:
        journal = self.journal(place, 0, 0, 0)
        journal.put(Record(Attempt(7, 1), Decision.ABORT))
        journal.put(Record(Attempt(6, 2), Decision.COMMIT))
        assert place.open().recall(Attempt(7, 3)) == (journal.records(7), journal.rivals(3))
        assert place.open().recall(Attempt(7, 3)) == ((Record(Attempt(7, 1), Decision.ABORT),), (2,))


class Failing(MemoryStore):
    """``lands`` says whether a put that fails has been carried out nevertheless."""

    def __init__(self, lands: bool) -> None:
        super().__init__()
        self.lands = lands
        self.failing = True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.lands or not self.failing:
            super().put_if_absent(key, data)
        if self.failing:
            raise JournalError(f"{key} could not be written: the line went dead")
        return True


class TestPut:
    def test_the_first_decision_stands(self, place: Place) -> None:
        assert place.open().put(RECORD) == RECORD
        assert place.open().put(Record(ME, Decision.ABORT, reason="late")) == RECORD
        assert place.open().records() == (RECORD,)
        assert place.open().records()[0].facts == RECORD.facts

    def test_a_driver_that_lost_obeys_what_it_reads_back(self, place: Place) -> None:
        late = place.open()
        assert late.records() == ()
        abort = Record(ME, Decision.ABORT, reason="fenced by generation 4")
        place.open().put(abort)
        assert late.put(RECORD) == abort
        assert late.records() == (abort,)

    def test_an_error_that_landed_is_a_decision(self) -> None:
        store = Failing(lands=True)
        assert Journal(store).put(RECORD) == RECORD
        assert Journal(store).records() == (RECORD,)

    def test_an_error_that_did_not_land_is_an_error(self) -> None:
        store = Failing(lands=False)
        journal = Journal(store)
        with pytest.raises(JournalError, match="went dead"):
            journal.put(RECORD)
        assert journal.records() == ()
        store.failing = False
        assert journal.put(RECORD) == RECORD

    def test_an_error_after_somebody_else_decided(self) -> None:
        store = Failing(lands=True)
        abort = Record(ME, Decision.ABORT, reason="fenced")
        Journal(store).put(abort)
        assert Journal(store).put(RECORD) == abort

    def test_one_of_many_racing_decisions_stands(self, place: Place) -> None:
        def decide(number: int) -> Record:
            return place.open().put(Record(ME, Decision.ABORT, reason=str(number)))

        with ThreadPoolExecutor(8) as pool:
            standing = list(pool.map(decide, range(8)))
        assert len({record.reason for record in standing}) == 1
        assert place.open().records() == (standing[0],)

    def test_records_come_in_the_order_of_attempts(self, place: Place) -> None:
        attempts = [Attempt(2, 1), Attempt(0, 2), Attempt(0, 1), Attempt(10**12, 1), Attempt(3, 10**7)]
        for attempt in attempts:
            place.open().put(Record(attempt, Decision.COMMIT))
        assert [record.attempt for record in place.open().records()] == sorted(attempts)
        assert [record.attempt for record in place.open().records(0)] == [Attempt(0, 1), Attempt(0, 2)]

    def test_a_decision_that_vanishes_is_an_error(self, place: Place) -> None:
        class Losing(MemoryStore):
            def read(self, key: str) -> bytes | None:
                return None

        store = Losing()
        Journal(store).put(RECORD)
        with pytest.raises(JournalError, match="vanished"):
            Journal(store).records()


def test_the_first_note_of_a_kind_stays(place: Place) -> None:
    for number in (1, 2):
        place.open().note(Note(ME, "not deterministic", {"number": number}))
    place.open().note(Note(ME, "abandoned", {}))
    assert list(place.open().notes()) == [Note(ME, "abandoned", {}), Note(ME, "not deterministic", {"number": 1})]


def test_the_first_choice_of_a_person_stays(place: Place) -> None:
    assert place.open().resolution(12) is None
    assert place.open().resolve(12, Resolution.ABANDON)
    assert not place.open().resolve(12, Resolution.REWRITE)
    assert place.open().resolution(12) is Resolution.ABANDON
    assert place.open().resolution(13) is None


def test_findings_are_forgotten_up_to_an_epoch(place: Place) -> None:
    for epoch in (4, 5):
        place.open().note(Note(Attempt(epoch, 1), "delivered", {}))
        place.open().resolve(epoch, Resolution.REWRITE)
    place.open().forget_findings(4)
    assert [note.attempt.epoch for note in place.open().notes()] == [5]
    assert [place.open().resolution(epoch) for epoch in (4, 5)] == [None, Resolution.REWRITE]
