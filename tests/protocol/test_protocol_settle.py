"""The pure functions of `protocol/settle.py`."""

from __future__ import annotations

from tallystick.protocol.settle import differences, in_force, still_right, to_rewrite
from tallystick.records import Attempt, Decision, Fingerprint, Parts, Record, Vote


def vote(sink: str, number: int, hash_: int = 1, name: str | None = "t", rows: int = 1) -> Vote:
    return Vote(sink, number, Fingerprint(rows, hash_), name)


def empty(sink: str, number: int) -> Vote:
    return Vote(sink, number, Fingerprint())


def commit(generation: int, *votes: Vote, replaces: Parts | None = None) -> Record:
    return Record(Attempt(7, generation), Decision.COMMIT, votes=votes, replaces=replaces)


A0, A1, B0 = vote("a", 0, 10, "a0"), vote("a", 1, 11, "a1"), vote("b", 0, 12, "b0")


def test_nothing_is_in_force_without_a_commit() -> None:
    assert in_force(()) is None
    assert in_force((Record(Attempt(7, 1), Decision.ABORT), Record(Attempt(7, 2), Decision.ABORT))) is None


def test_a_commit_without_votes_is_a_decision_all_the_same() -> None:
    assert in_force((commit(1),)) == ()


def test_the_newest_replacement_of_a_slice_is_in_force_whatever_the_order_of_reading() -> None:
    again, third = vote("a", 1, 11, "a1 again"), vote("a", 1, 11, "a1 third")
    only = Parts(slices=frozenset({("a", 1)}))
    records = (commit(5, third, replaces=only), commit(1, A0, A1, B0), commit(3, again, replaces=only))
    assert in_force(records) == (A0, B0, third)


def test_aborts_between_commits_do_not_count() -> None:
    assert in_force((commit(1, A0), Record(Attempt(7, 2), Decision.ABORT))) == (A0,)


def test_a_whole_sink_is_replaced_however_it_was_sliced() -> None:
    whole = vote("a", 0, 21, "a whole", rows=2)
    assert in_force((commit(1, A0, A1, B0), commit(2, whole, replaces=Parts(frozenset({"a"}))))) == (B0, whole)


def test_a_commit_that_replaces_nothing_leaves_all_in_force() -> None:
    """What a driver puts that only verified (essay 3)."""
    assert in_force((commit(1, A0, A1), commit(2, replaces=Parts()))) == (A0, A1)


def test_a_commit_without_replaces_starts_again() -> None:
    """From a time when the job ran at-least-once."""
    assert in_force((commit(1, A0, A1), commit(2, B0))) == (B0,)


def test_a_lost_slice_is_rewritten_alone_while_its_sink_holds_others() -> None:
    assert to_rewrite((A0, A1, B0), (A1,)) == Parts(slices=frozenset({("a", 1)}))


def test_a_sink_that_lost_all_is_rewritten_whole() -> None:
    assert to_rewrite((A0, A1, B0), (A0, A1)) == Parts(frozenset({"a"}))
    assert to_rewrite((A0, empty("a", 1)), (A0,)) == Parts(frozenset({"a"})), "an empty slice holds nothing"


def test_both_kinds_at_once() -> None:
    assert to_rewrite((A0, A1, B0), (A1, B0)) == Parts(frozenset({"b"}), frozenset({("a", 1)}))


def test_a_slice_is_still_right_if_its_own_rows_come_again() -> None:
    write = Parts(slices=frozenset({("a", 1)}))
    assert still_right((A1,), (vote("a", 0, 99), vote("a", 1, 11)), write) == ()
    assert still_right((A1,), (A0, vote("a", 1, 12)), write) == (A1,)
    assert still_right((A1,), (A0,), write) == (A1,), "the slice is gone"


def test_a_whole_sink_is_still_right_if_its_total_is() -> None:
    write = Parts(frozenset({"a"}))
    assert still_right((A0, A1), (vote("a", 0, 21, rows=2),), write) == ()
    assert still_right((A0, A1), (vote("a", 0, 22, rows=2),), write) == (A0, A1)
    assert still_right((A0, A1), (B0,), write) == (A0, A1), "the replay has nothing for the sink"


def test_differences_compare_whole_sinks_not_slices() -> None:
    moved = (vote("a", 0, 1, rows=1), vote("a", 1, 20, rows=1))
    assert differences((A0, A1), moved) == {}
    assert differences((A0, A1, B0), (A0, A1)) == {
        "b": {"decided": str(B0.fingerprint), "replayed": str(Fingerprint())}
    }
    assert differences((A0,), (A0, B0)) == {"b": {"decided": str(Fingerprint()), "replayed": str(B0.fingerprint)}}


def test_an_empty_sink_is_no_difference() -> None:
    assert differences((A0, empty("b", 0)), (A0,)) == {}
