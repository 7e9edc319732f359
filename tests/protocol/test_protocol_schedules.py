"""Thousands of random fault schedules; one that fails is shrunk to its shortest form and printed with its seed."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from broken import commits_before_deciding
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from schedules import FAULTS, Move, Server, World, WrongError, all_slices, play

from tallystick.protocol import MODES
from tallystick.records import Json, Mode, Outcome

MOVES = st.builds(Move, st.integers(0, 2), st.integers(0, 12), st.sampled_from(FAULTS))
SCHEDULES = st.lists(MOVES, max_size=8)
MANY = settings(
    max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
FEWER = settings(MANY, max_examples=300)
MEMORY = Path("/dev/shm")


def played(schedule: Sequence[Move], mode: Mode = Mode.EXACTLY_ONCE, **world: object) -> Counter[tuple[int, int]]:
    """In a folder of its own, on a file system in memory where there is one: fsync is asked for, and is quick."""
    folder = Path(tempfile.mkdtemp(prefix="schedule-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        chosen = {"protocol": MODES[mode], **world}
        return play(schedule, World(folder, mode, **chosen))  # type: ignore[arg-type]
    finally:
        shutil.rmtree(folder)


@MANY
@given(SCHEDULES)
def test_exactly_once_publishes_every_slice_once(schedule: list[Move]) -> None:
    assert played(schedule) == Counter(all_slices())


@pytest.mark.slow
@settings(MANY, max_examples=20_000)
@given(st.lists(MOVES, max_size=20))
def test_exactly_once_in_long_schedules(schedule: list[Move]) -> None:
    assert played(schedule) == Counter(all_slices())


@FEWER
@given(SCHEDULES)
def test_at_least_once_publishes_every_slice(schedule: list[Move]) -> None:
    """A zombie may publish an epoch that another driver has done since: that is a repeat."""
    assert set(played(schedule, Mode.AT_LEAST_ONCE)) == all_slices()


@FEWER
@given(SCHEDULES)
def test_at_most_once_publishes_no_slice_twice(schedule: list[Move]) -> None:
    published = played(schedule, Mode.AT_MOST_ONCE)
    assert all(count == 1 for count in published.values()), published


class PublishesAgain(Server):
    """Broken: a repeated commit publishes again."""

    def _commit(self, name: str) -> Outcome:
        if self.ended.get(name) == "committed":
            self.publish(int(name.split(".")[0]), int(name.split("-")[1]))
        return super()._commit(name)


class LosesExpired(Server):
    """Broken: what expired is reported as committed."""

    def commit(self, committable: Json) -> Outcome:
        outcome = super().commit(committable)
        return Outcome.ALREADY_COMMITTED if outcome is Outcome.EXPIRED else outcome


class PublishesTheAborted(Server):
    """Broken: what is rolled back stays visible."""

    def abort(self, committable: Json) -> None:
        name = committable["name"]
        if name in self.open:
            self.publish(self.open[name].epoch, int(name.split("-")[1]))
        super().abort(committable)


def wrong(**world: object) -> Callable[[Sequence[Move]], bool]:
    def is_wrong(schedule: Sequence[Move]) -> bool:
        try:
            return played(schedule, **world) != Counter(all_slices())  # type: ignore[arg-type]
        except WrongError:
            return True

    return is_wrong


@pytest.mark.parametrize(
    ("broken", "moves_at_most"),
    [
        ({"make_server": PublishesAgain}, 1),
        ({"make_server": LosesExpired}, 2),
        ({"make_server": PublishesTheAborted}, 2),
        ({"protocol": commits_before_deciding}, 0),
    ],
    ids=["publishes again", "loses what expired", "publishes the aborted", "commits before deciding"],
)
def test_what_is_broken_is_found_and_shrunk(broken: dict[str, object], moves_at_most: int) -> None:
    """Hypothesis hands back the shortest schedule that it could find: a person can follow it."""
    found = find(SCHEDULES, wrong(**broken), settings=settings(FEWER, max_examples=2000))
    print(f"\n{found}")
    assert len(found) <= moves_at_most


def test_a_schedule_is_a_value_that_can_be_typed_again() -> None:
    schedule = [Move(0, 3, "crash-inside"), Move(0, 12, "none")]
    assert eval(repr(schedule)) == schedule
    assert played(schedule) == Counter(all_slices())


def test_nothing_is_played_twice() -> None:
    """A schedule has no memory: the same one gives the same result."""
    schedule = [Move(1, 6, "expire"), Move(0, 9, "doubt"), Move(1, 4, "none")]
    assert played(schedule) == played(schedule)
