"""Checkers on histories written by hand: each wrong is found by the checker that is named after it, and by no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tallystick.prover.checkers import CHECKERS, Verdict, check
from tallystick.prover.history import LAST, WATCHER, Decided, History, Nature, Read
from tallystick.prover.readers import Item

SINK = "out"
PLACE = "0"


def item(text: str) -> Item:
    """``k1:3`` is the third row of key k1."""
    return Item(text, text.split(":")[0])


EXPECTED = {0: ("k1:0", "k2:0"), 1: ("k1:1", "k2:1"), 2: ("k1:2", "k2:2")}
DECIDED_AT = {0: 10.0, 1: 20.0, 2: 30.0}
ORDERED = Nature(ordered=True)
SETTLED_AT = {0: 11.0, 1: 21.0, 2: 31.0}


def history(
    reads: Sequence[tuple[float, Sequence[str]]] = (
        (10.5, ("k1:0", "k2:0")),
        (20.5, ("k1:1", "k2:1")),
        (30.5, ("k1:2", "k2:2")),
        (34.0, ()),
    ),
    last: Sequence[str] | None = ("k1:0", "k2:0", "k1:1", "k2:1", "k1:2", "k2:2"),
    expected: Mapping[int, Sequence[str]] = EXPECTED,
    decisions: Sequence[Decided] | None = None,
    gone: Sequence[str] = (),
    nature: Nature = ORDERED,
) -> History:
    """A good one, if nothing is changed: a watcher who saw each epoch soon after it was decided, and a last reader."""
    made = History(
        expected={SINK: {epoch: tuple(map(item, rows)) for epoch, rows in expected.items()}},
        natures={SINK: nature},
        keeps_state=True,
        reads=[Read(WATCHER, SINK, at - 0.1, at, {PLACE: tuple(map(item, rows))}) for at, rows in reads],
        decisions=list(decisions) if decisions is not None else [commit(epoch, at) for epoch, at in DECIDED_AT.items()],
        settled=dict(SETTLED_AT),
    )
    if gone:
        made.reads.append(Read(WATCHER, SINK, 39.0, 39.1, {}, {PLACE: tuple(gone)}))
    if last is not None:
        made.reads.append(Read(LAST, SINK, 40.0, 40.1, {PLACE: tuple(map(item, last))}))
    return made


def commit(epoch: int, at: float) -> Decided:
    return Decided(epoch, 1, "COMMIT", at)


def convicted(told: History) -> dict[str, int]:
    return {name: answer.count for name, answer in check(told)[SINK].items() if answer.verdict is Verdict.INVALID}


def test_a_good_history_is_valid_for_every_checker() -> None:
    answers = check(history())[SINK]
    assert set(answers) == set(CHECKERS)
    assert {answer.verdict for answer in answers.values()} == {Verdict.VALID}


def test_a_whole_epoch_is_lost() -> None:
    told = history(reads=((10.5, EXPECTED[0]), (30.5, EXPECTED[2])), last=("k1:0", "k2:0", "k1:2", "k2:2"))
    assert convicted(told) == {"lost": 2}


def test_a_part_of_an_epoch_is_lost_and_so_the_epoch_is_torn() -> None:
    told = history(
        reads=((10.5, EXPECTED[0]), (20.5, ("k1:1",)), (30.5, EXPECTED[2])),
        last=("k1:0", "k2:0", "k1:1", "k1:2", "k2:2"),
    )
    assert convicted(told) == {"lost": 1, "torn": 1}


def test_an_epoch_is_published_twice() -> None:
    twice = ("k1:0", "k2:0", "k1:1", "k2:1", "k1:1", "k2:1", "k1:2", "k2:2")
    assert convicted(history(last=twice)) == {"repeated": 2}


def test_a_row_that_nobody_sent() -> None:
    told = history(last=("k1:0", "k2:0", "k1:1", "k2:1", "k1:2", "k2:2", "k1:7"))
    assert convicted(told) == {"phantom": 1, "state": 1}
    told.keeps_state = False
    assert convicted(told) == {"phantom": 1}


def test_rows_are_visible_before_they_are_decided() -> None:
    told = history(reads=((10.5, EXPECTED[0]), (15.0, EXPECTED[1]), (30.5, EXPECTED[2])))
    assert convicted(told) == {"dirty": 2}
    assert "5.00 s before epoch 1 was decided" in check(told)[SINK]["dirty"].evidence[0]


def test_the_first_of_two_commits_counts() -> None:
    """The second one is of a driver that took over, and only says that nothing was left to write."""
    decisions = [*history().decisions, Decided(1, 2, "COMMIT", 25.0)]
    assert convicted(history(decisions=decisions)) == {}


def test_rows_are_visible_that_were_only_ever_aborted() -> None:
    decisions = [commit(0, 10.0), Decided(1, 1, "ABORT", 20.0), commit(2, 30.0)]
    assert convicted(history(decisions=decisions)) == {"dirty": 2}


def test_rows_go_away_again() -> None:
    assert convicted(history(gone=("k1:9",))) == {"dirty": 1}


def test_an_epoch_is_torn_for_a_while() -> None:
    told = history(
        reads=((10.5, EXPECTED[0]), (20.5, ("k1:1",)), (25.0, ()), (28.0, ("k2:1",)), (30.5, EXPECTED[2])),
    )
    assert convicted(told) == {"torn": 1}


def test_a_moment_is_not_a_while() -> None:
    """The files of an epoch appear one after the other, and it may take a moment after the end of the epoch."""
    told = history(reads=((10.5, EXPECTED[0]), (21.5, ("k1:1",)), (22.0, ("k2:1",)), (30.5, EXPECTED[2]), (34.0, ())))
    assert convicted(told) == {}


def test_an_epoch_is_in_one_output_and_not_in_the_other() -> None:
    told, other = (
        history(),
        history(reads=((10.5, EXPECTED[0]), (30.5, EXPECTED[2])), last=("k1:0", "k2:0", "k1:2", "k2:2")),
    )
    told.expected["other"], told.natures["other"] = other.expected[SINK], other.natures[SINK]
    told.reads += [Read(read.reader, "other", read.began, read.at, read.new, read.gone) for read in other.reads]
    answers = check(told)
    assert answers[SINK]["torn"].verdict is Verdict.VALID
    assert answers["other"]["torn"].count == 1


def test_the_rows_of_a_key_are_out_of_order() -> None:
    told = history(last=("k1:0", "k2:0", "k1:2", "k2:1", "k1:1", "k2:2"))
    assert convicted(told) == {"reordered": 1}


def test_rows_of_different_keys_have_no_order() -> None:
    assert convicted(history(last=("k2:0", "k2:1", "k2:2", "k1:0", "k1:1", "k1:2"))) == {}


def test_a_repeat_is_not_a_reordering() -> None:
    assert convicted(history(last=("k1:0", "k2:0", "k1:1", "k2:1", "k1:2", "k2:2", "k1:0"))) == {"repeated": 1}


@pytest.mark.parametrize("nature", [Nature(ordered=False), Nature(ordered=True, order_known=False)])
def test_where_there_is_no_order_it_is_not_checked(nature: Nature) -> None:
    answers = check(history(last=("k1:2", "k1:1", "k1:0", "k2:2", "k2:1", "k2:0"), nature=nature))[SINK]
    assert "reordered" not in answers


def test_readers_wait_too_long_for_an_epoch() -> None:
    told = history(reads=((10.5, EXPECTED[0]), (95.0, EXPECTED[1]), (96.0, EXPECTED[2])))
    assert convicted(told) == {"stuck": 2}
    told.stuck_s = 80.0
    assert convicted(told) == {}


def test_nobody_waits_for_a_job_that_is_dead() -> None:
    told = history(reads=((10.5, EXPECTED[0]), (95.0, EXPECTED[1]), (96.0, EXPECTED[2])))
    told.events.append({"event": "ended", "at": 31.5, "life": 1})
    told.decisions.append(Decided(3, 2, "COMMIT", 70.0))
    assert convicted(told) == {}
    told.decisions[-1] = Decided(3, 2, "COMMIT", 32.0)
    assert convicted(told) == {"stuck": 2}


def test_where_readers_are_held_back_a_part_of_an_epoch_is_not_torn_yet() -> None:
    reads = ((10.5, EXPECTED[0]), (20.5, ("k1:1",)), (25.0, ()), (28.0, ("k2:1",)), (30.5, EXPECTED[2]))
    assert convicted(history(reads=reads, nature=Nature(ordered=True, settles_s=None))) == {}


def test_a_running_count_goes_astray() -> None:
    """State that was kept of an aborted epoch counts it twice: the next result is too high."""
    told = history(last=("k1:0", "k2:0", "k1:1", "k2:1", "k1:3", "k2:2"))
    assert convicted(told) == {"lost": 1, "phantom": 1, "torn": 1, "state": 1}
    assert check(told)[SINK]["state"].evidence == ("key k1: k1:3 instead of k1:2",)


def test_state_is_not_checked_in_a_job_without() -> None:
    told = history()
    told.keeps_state = False
    assert "state" not in check(told)[SINK]


def test_without_a_last_reader_nothing_is_known() -> None:
    answers = check(history(last=None))[SINK]
    unknown = {name for name, answer in answers.items() if answer.verdict is Verdict.UNKNOWN}
    assert unknown == set(CHECKERS) - {"dirty"}


def test_without_a_watcher_it_is_not_known_what_readers_saw_meanwhile() -> None:
    assert check(history(reads=()))[SINK]["dirty"].verdict is Verdict.UNKNOWN


def test_rows_without_identity_are_never_valid() -> None:
    told = history(expected={0: ("k1:0", "k1:0")}, last=("k1:0", "k1:0"), reads=((10.5, ("k1:0", "k1:0")),))
    answers = check(told)[SINK]
    assert answers["lost"].verdict is answers["repeated"].verdict is Verdict.UNKNOWN
    told = history(expected={0: ("k1:0", "k1:0")}, last=("k1:0",), reads=((10.5, ("k1:0",)),))
    assert check(told)[SINK]["lost"].verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ((), Verdict.UNKNOWN),
        ((Verdict.VALID,), Verdict.VALID),
        ((Verdict.VALID, Verdict.UNKNOWN), Verdict.UNKNOWN),
        ((Verdict.UNKNOWN, Verdict.INVALID, Verdict.VALID), Verdict.INVALID),
    ],
)
def test_the_worst_of_several(verdicts: Sequence[Verdict], worst: Verdict) -> None:
    assert Verdict.worst(verdicts) is worst
