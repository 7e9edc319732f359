"""Outputs in which later rows replace earlier ones: each wrong is still found by the checker that is named after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.prover.checkers import Verdict, check
from tallystick.prover.history import LAST, WATCHER, History
from tallystick.records import Json

SINK = "table"
EXPECTED = {0: ("a:1", "b:1"), 1: ("a:2", "b:2"), 2: ("a:3", "b:3")}
Sight = tuple[float, Mapping[str, str], Mapping[str, str]]
"""When, what is new in which place, what is gone from there."""
GOOD: tuple[Sight, ...] = (
    (10.5, {"a": "a:1", "b": "b:1"}, {}),
    (30.5, {"a": "a:3", "b": "b:3"}, {"a": "a:1", "b": "b:1"}),
)
"""Nobody saw epoch 1: it was replaced between two looks."""


def history(sights: Sequence[Sight] = GOOD, last: Mapping[str, str] | None = None) -> History:
    nature = {"ordered": False, "settles_s": 2.0, "order_known": True, "latest_only": True}
    lines: list[Json] = [{"event": "nature", "at": 0.0, "sinks": {SINK: nature}, "keeps_state": False, "stuck_s": 60.0}]
    for epoch, rows in EXPECTED.items():
        places = [row[0] for row in rows]
        pairs = [[row, row[0]] for row in rows]
        lines.append({"event": "expected", "at": 0.0, "sink": SINK, "epoch": epoch, "rows": pairs, "places": places})
    for epoch, at in ((0, 10.0), (1, 20.0), (2, 30.0)):
        lines.append({"event": "decided", "at": at, "epoch": epoch, "generation": 1, "decision": "COMMIT", "when": at})
        lines.append({"event": "settled", "at": at + 1, "epoch": epoch, "when": at + 1})
    lines += [read(WATCHER, at, new, gone) for at, new, gone in sights]
    lines.append(read(LAST, 40.0, {"a": "a:3", "b": "b:3"} if last is None else last, {}))
    return History.of(lines)


def read(reader: str, at: float, new: Mapping[str, str], gone: Mapping[str, str]) -> Json:
    found = {place: [[row, row[0]]] for place, row in new.items()}
    lost = {place: [row] for place, row in gone.items()}
    return {"event": "read", "reader": reader, "sink": SINK, "began": at - 0.1, "at": at, "new": found, "gone": lost}


def convicted(told: History) -> dict[str, int]:
    return {name: answer.count for name, answer in check(told)[SINK].items() if answer.verdict is Verdict.INVALID}


def test_replaced_rows_are_neither_lost_nor_gone() -> None:
    answers = check(history())[SINK]
    assert {answer.verdict for answer in answers.values()} == {Verdict.VALID}, answers


def test_a_last_version_that_is_missing_is_lost() -> None:
    assert convicted(history(last={"a": "a:3", "b": "b:2"})) == {"lost": 1, "torn": 1}


def test_a_row_that_is_missing_altogether_is_lost_with_all_its_versions() -> None:
    assert convicted(history(last={"a": "a:3"}))["lost"] == 3


def test_a_sum_that_was_added_twice_is_a_row_that_nobody_sent() -> None:
    found = convicted(history(last={"a": "a:3", "b": "b:33"}))
    assert found["phantom"] == 1
    assert found["lost"] == 3


def test_a_row_that_came_too_early_is_dirty() -> None:
    early: Sight = (15.0, {"a": "a:2"}, {"a": "a:1"})
    assert convicted(history((GOOD[0], early, GOOD[1]))) == {"dirty": 1}


def test_a_row_that_went_back_is_dirty() -> None:
    """What a driver that was taken for dead wrote late, over something newer."""
    back: Sight = (35.0, {"a": "a:2"}, {"a": "a:3"})
    again: Sight = (36.0, {"a": "a:3"}, {"a": "a:2"})
    assert convicted(history((*GOOD, back, again))) == {"dirty": 1}


def test_a_row_that_went_away_is_dirty() -> None:
    assert "dirty" in convicted(history((*GOOD, (35.0, {}, {"a": "a:3"}))))


def test_a_part_of_an_epoch_is_torn() -> None:
    """Epoch 2 is over at 31, and at 34 one of its rows is still that of epoch 1."""
    half: Sight = (30.5, {"a": "a:3", "b": "b:2"}, {"a": "a:1", "b": "b:1"})
    seen: tuple[Sight, ...] = (GOOD[0], half, (34.0, {}, {}), (35.0, {"b": "b:3"}, {"b": "b:2"}))
    assert convicted(history(seen)) == {"torn": 1}
