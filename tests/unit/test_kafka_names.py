"""Names of transactions: bound to a worker, few, and not started anew while undecided."""

from __future__ import annotations

import multiprocessing
import os
import stat
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tallystick.errors import SinkError
from tallystick.records import Attempt
from tallystick.sinks.kafka import names
from tallystick.sinks.kafka.names import LINES_MAX, Slot, prefix_of

PREFIX = prefix_of("tallystick", "job", "topic")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "slots"
    made.mkdir()
    return made


def release(slot: Slot) -> None:
    """As if its worker had died."""
    slot._file.close()


def used(slot: Slot, attempt: Attempt) -> str:
    """One transaction of that attempt, from the name to the vote."""
    name = slot.take(attempt)
    slot.use(name, attempt)
    slot.give_back(name)
    return name


def test_all_names_of_a_sink_start_alike_and_nobody_elses_do() -> None:
    prefixes = [
        prefix_of(given, job, topic) for given in ("t", "tt") for job in ("a", "ab") for topic in ("x", "xy", None)
    ]
    assert not [(a, b) for a in prefixes for b in prefixes if a != b and a.startswith(b)]


def test_two_workers_have_different_slots(folder: Path) -> None:
    slots = [Slot(PREFIX, folder) for _ in range(5)]
    taken = [slot.take(Attempt(0, 1)) for slot in slots]
    assert len(set(taken)) == 5
    assert all(name.startswith(PREFIX) for name in taken)


def _work(folder: Path, told: Connection) -> None:
    slot = Slot(PREFIX, folder)
    told.send(used(slot, Attempt(0, 1)))
    told.recv()


def test_two_processes_have_different_slots_and_one_that_was_killed_frees_its(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    worker = spawn.Process(target=_work, args=(folder, its))
    worker.start()
    try:
        assert mine.poll(60)
        theirs = mine.recv()
        other = Slot(PREFIX, folder)
        assert other.take(Attempt(0, 1)).rpartition(".")[0] != theirs.rpartition(".")[0]
    finally:
        worker.kill()
        worker.join(30)
    successor = Slot(PREFIX, folder)
    assert successor.take(Attempt(1, 1)) == theirs, "the next epoch"


def test_a_freed_slot_is_taken_again(folder: Path) -> None:
    first, second, third = (Slot(PREFIX, folder) for _ in range(3))
    before = second.take(Attempt(0, 1))
    release(second)
    assert Slot(PREFIX, folder).take(Attempt(0, 1)) == before
    del first, third


def test_names_stay_few_over_a_thousand_epochs(folder: Path) -> None:
    """Workers come and go, each writes up to three slices per epoch and has producers waiting for their turn."""
    seen: set[str] = set()
    workers = [Slot(PREFIX, folder) for _ in range(3)]
    waiting: dict[int, list[str]] = {number: [] for number in range(3)}
    for epoch in range(1000):
        attempt = Attempt(epoch, 1 + epoch // 100)
        if epoch % 10 == 9:
            release(workers[epoch % 3])
            workers[epoch % 3], waiting[epoch % 3] = Slot(PREFIX, folder), []
        for number, slot in enumerate(workers):
            for _ in range(1 + (epoch + number) % 3):
                name = waiting[number].pop(0) if waiting[number] else slot.take(attempt)
                slot.use(name, attempt)
                slot.give_back(name)
                waiting[number].append(slot.take(attempt))
                seen |= {name, *waiting[number]}
    print(f"names after 1000 epochs of 3 workers with up to 3 slices: {len(seen)}")
    assert len(seen) <= 3 * 2 * 3


def test_a_name_is_not_taken_again_while_undecided(folder: Path) -> None:
    slot = Slot(PREFIX, folder)
    first = used(slot, Attempt(5, 2))
    assert used(slot, Attempt(5, 2)) != first, "the same attempt"
    assert slot.take(Attempt(4, 2)) != first, "a task of an earlier epoch that is late"
    assert used(slot, Attempt(6, 2)) == first, "the next epoch: the one before is settled"


def test_a_name_is_not_taken_again_while_its_producer_waits(folder: Path) -> None:
    slot = Slot(PREFIX, folder)
    waiting = slot.take(Attempt(0, 1))
    assert slot.take(Attempt(1, 1)) != waiting
    slot.give_back(waiting)
    assert slot.take(Attempt(2, 1)) == waiting


def test_a_new_generation_at_the_same_epoch_has_settled_the_one_before(folder: Path) -> None:
    """It prepares only when every earlier attempt at the epoch is committed, expired or aborted."""
    slot = Slot(PREFIX, folder)
    first = used(slot, Attempt(5, 2))
    assert slot.take(Attempt(5, 3)) == first


def test_a_task_of_an_older_generation_leaves_the_names_of_the_newer_alone(folder: Path) -> None:
    slot = Slot(PREFIX, folder)
    newer = used(slot, Attempt(5, 3))
    assert slot.take(Attempt(5, 2)) != newer
    assert slot.take(Attempt(6, 2)) != newer, "an old driver that is ahead does not know of the newer one's"


def test_a_worker_that_died_after_its_vote_leaves_its_names_alone(folder: Path) -> None:
    voted = Slot(PREFIX, folder)
    names_of_the_dead = {used(voted, Attempt(7, 1)) for _ in range(3)}
    release(voted)
    successor = Slot(PREFIX, folder)
    fresh = [used(successor, Attempt(7, 1)) for _ in range(3)]
    assert not names_of_the_dead & set(fresh)
    assert {used(successor, Attempt(8, 1)) for _ in range(3)} == names_of_the_dead


@pytest.mark.parametrize(
    "found",
    [
        b"{",
        b'{"0": "000000000007.00',
        b'{"0": "garbage"}',
        b'{"zero": "000000000007.0000001"}',
        b"[1]",
        b"7",
        b'{"0": 7}',
        b"\xff\xfe",
        b"\x00" * 40,
    ],
)
def test_a_file_that_cannot_be_read_is_no_news(folder: Path, found: bytes) -> None:
    (folder / "slot-0").write_bytes(found)
    slot = Slot(PREFIX, folder)
    name = used(slot, Attempt(7, 1))
    release(slot)
    assert Slot(PREFIX, folder).take(Attempt(7, 1)) != name, "it was written anew, and whole"


def test_the_file_does_not_grow_with_the_epochs(folder: Path) -> None:
    slot = Slot(PREFIX, folder)
    for epoch in range(3 * LINES_MAX):
        used(slot, Attempt(epoch, 1))
    release(slot)
    assert len((folder / "slot-0").read_text().splitlines()) <= LINES_MAX
    again = Slot(PREFIX, folder)
    assert again._used == {0: Attempt(3 * LINES_MAX - 1, 1)}


def test_a_shorter_note_leaves_nothing_of_the_longer_one(folder: Path) -> None:
    slot = Slot(PREFIX, folder)
    for _ in range(12):
        used(slot, Attempt(10**12, 10**7))
    release(slot)
    (folder / "slot-0").write_bytes((folder / "slot-0").read_bytes() + b" " * 100)
    again = Slot(PREFIX, folder)
    used(again, Attempt(10**12 + 1, 10**7))
    release(again)
    assert len(Slot(PREFIX, folder)._used) == 12


def test_other_machines_have_names_of_their_own(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    assert len({Slot(PREFIX, place).take(Attempt(0, 1)) for place in places}) == 2


def test_the_usual_folder_is_for_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Slot(PREFIX).take(Attempt(0, 1))
    root = tmp_path / f"tallystick-{os.getuid()}"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert len(list(root.glob("kafka/*/slot-0"))) == 1
    assert Slot(PREFIX).take(Attempt(0, 1)) != Slot(prefix_of("tallystick", "job", "other")).take(Attempt(0, 1))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    somebody = os.getuid() + 1
    root = tmp_path / f"tallystick-{os.getuid()}"
    root.mkdir()
    if os.getuid() == 0:
        os.chown(root, somebody, -1)
    else:
        root = tmp_path / f"tallystick-{somebody}"
        root.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(SinkError, match=r"belongs to another user\. set TMPDIR to a folder of your own"):
        Slot(PREFIX)


def test_a_folder_that_cannot_be_made_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))
    with pytest.raises(SinkError, match=r"cannot be made: .*\. set TMPDIR"):
        Slot(PREFIX)


def test_too_many_workers_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SLOTS_MAX", 2)
    held = [Slot(PREFIX, folder), Slot(PREFIX, folder)]
    with pytest.raises(SinkError, match="2 workers of one job hold a slot in"):
        Slot(PREFIX, folder)
    del held
