"""Values print, parse and survive JSON; fingerprints do not care about order or slicing; bad texts are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import TallystickError
from tallystick.records import (
    HASH_MASK,
    Attempt,
    Decision,
    Fingerprint,
    Json,
    Mode,
    Outcome,
    Parts,
    Record,
    SourceOffsets,
    Vote,
    totals_by_sink,
)

HUGE = 10**15
names = st.text(min_size=1, max_size=8)
attempts = st.builds(Attempt, st.integers(0, HUGE), st.integers(0, HUGE))
fingerprints = st.builds(Fingerprint, st.integers(0, HUGE), st.integers(0, HASH_MASK))
plain = st.none() | st.booleans() | st.integers(-HUGE, HUGE) | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
votes = st.builds(Vote, names, st.integers(0, 999), fingerprints, values)
parts = st.builds(
    Parts, st.frozensets(names, max_size=3), st.frozensets(st.tuples(names, st.integers(0, 999)), max_size=3)
)
offsets = st.just(SourceOffsets()) | st.builds(
    SourceOffsets,
    st.text("0123456789abcdef", min_size=1, max_size=32),
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(names, names, max_size=2).map(lambda rules: tuple(rules.items())),
)
records = st.builds(
    Record,
    attempts,
    st.sampled_from(Decision),
    st.sampled_from(Mode),
    st.lists(votes, max_size=3).map(tuple),
    st.none() | parts,
    st.text(max_size=10),
    offsets,
    st.dictionaries(names, values, max_size=3),
    st.integers(0, 2**62),
)


def parsed(parse: Callable[[str], object], text: str) -> object:
    """The value, or None if the text is refused."""
    try:
        return parse(text)
    except TallystickError:
        return None


def through_json(value: Json) -> Json:
    return json.loads(json.dumps(value))


@given(attempts)
def test_an_attempt_prints_and_parses(attempt: Attempt) -> None:
    assert Attempt.parse(str(attempt)) == attempt


@given(attempts, attempts)
def test_attempts_of_usual_size_sort_as_their_names(one: Attempt, other: Attempt) -> None:
    if max(one.epoch, other.epoch) < 10**12 and max(one.generation, other.generation) < 10**7:
        assert (one < other) == (str(one) < str(other))


@given(st.text(max_size=30) | st.from_regex(r"\A\d{10,14}\.\d{5,9}\Z"))
def test_only_the_one_name_of_an_attempt_is_parsed(text: str) -> None:
    """Also not digits of other scripts, nor more zeros: two names would be two places for one decision."""
    if str(parsed(Attempt.parse, text)) != text:
        with pytest.raises(TallystickError, match=r"needed EPOCH\.GENERATION"):
            Attempt.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.1",
        "000000000001",
        "000000000001.",
        "000000000001.0000001.json",
        "000000000001.0000001\n",
        " 000000000001.0000001",
        "0000000000001.0000001",
        "000000000001.00000001",
        "-00000000001.0000001",
        "٠٠٠٠٠٠٠٠٠٠٠١.0000001",
    ],
)
def test_names_that_are_not_quite_an_attempt(text: str) -> None:
    with pytest.raises(TallystickError, match="not the name of an attempt"):
        Attempt.parse(text)


@pytest.mark.parametrize(("epoch", "generation"), [(-1, 0), (0, -1)])
def test_an_attempt_has_no_negative_parts(epoch: int, generation: int) -> None:
    with pytest.raises(TallystickError, match="negative"):
        Attempt(epoch, generation)


@given(fingerprints)
def test_a_fingerprint_prints_and_parses(fingerprint: Fingerprint) -> None:
    assert Fingerprint.parse(str(fingerprint)) == fingerprint


@given(st.text(max_size=30) | st.from_regex(r"\A\d{1,4}:[0-9a-fA-F]{15,17}\Z"))
def test_only_the_one_text_of_a_fingerprint_is_parsed(text: str) -> None:
    if str(parsed(Fingerprint.parse, text)) != text:
        with pytest.raises(TallystickError, match="needed ROWS:16-HEX-DIGITS"):
            Fingerprint.parse(text)


@pytest.mark.parametrize("text", ["", "1", "1:", "-1:" + "0" * 16, "01:" + "0" * 16, "1:" + "F" * 16, "1:" + "f" * 17])
def test_texts_that_are_not_quite_a_fingerprint(text: str) -> None:
    with pytest.raises(TallystickError, match="not a fingerprint"):
        Fingerprint.parse(text)


@given(st.lists(fingerprints, max_size=12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_fingerprints_add_up_whatever_the_order_and_slicing(
    rows: list[Fingerprint], chance: random.Random, slices: int
) -> None:
    whole = Fingerprint.total(rows)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    sliced: list[list[Fingerprint]] = [[] for _ in range(slices)]
    for row in shuffled:
        sliced[chance.randrange(slices)].append(row)
    assert Fingerprint.total(Fingerprint.total(part) for part in sliced) == whole
    assert whole.rows == sum(row.rows for row in rows)
    assert 0 <= whole.hash <= HASH_MASK


@given(fingerprints)
def test_no_rows_add_nothing(fingerprint: Fingerprint) -> None:
    assert fingerprint + Fingerprint() == fingerprint
    assert Fingerprint.total([]) == Fingerprint()


def test_the_sum_wraps_at_64_bits() -> None:
    assert Fingerprint(1, HASH_MASK) + Fingerprint(1, 1) == Fingerprint(2, 0)


@given(st.lists(votes, max_size=8).flatmap(lambda cast: st.tuples(st.just(cast), st.permutations(cast))))
def test_totals_by_sink_do_not_depend_on_the_order_of_votes(both: tuple[list[Vote], list[Vote]]) -> None:
    cast, shuffled = both
    assert totals_by_sink(cast) == totals_by_sink(shuffled)
    assert sum(total.rows for total in totals_by_sink(cast).values()) == sum(vote.fingerprint.rows for vote in cast)


@given(votes)
def test_a_vote_survives_json(vote: Vote) -> None:
    assert Vote.from_json(through_json(vote.to_json())) == vote


@pytest.mark.parametrize("committable", [0, False, "", [], {}])
def test_a_committable_that_looks_like_nothing_is_still_one(committable: Json) -> None:
    vote = Vote("files", 0, Fingerprint(), committable)
    found = Vote.from_json(through_json(vote.to_json())).committable
    assert found == committable
    assert found is not None


def test_an_empty_slice_has_no_committable_on_disk() -> None:
    assert "committable" not in Vote("files", 0, Fingerprint()).to_json()


@given(parts)
def test_parts_survive_json(some: Parts) -> None:
    assert Parts.from_json(through_json(some.to_json())) == some


def test_parts_name_whole_sinks_and_single_slices() -> None:
    some = Parts(frozenset({"a"}), frozenset({("b", 1)}))
    inside = [Vote("a", 7, Fingerprint()), Vote("b", 1, Fingerprint())]
    assert all(vote in some for vote in inside)
    assert Vote("b", 2, Fingerprint()) not in some
    assert Vote("a", 0, Fingerprint()) not in Parts()


@given(records)
def test_a_record_survives_json(record: Record) -> None:
    back = Record.from_json(through_json(record.to_json()))
    assert back == record
    assert back.facts == record.facts, "facts do not count for equality, but are kept"


def test_facts_are_for_people_and_do_not_make_decisions_differ() -> None:
    one, other = (Record(Attempt(1, 1), Decision.COMMIT, facts={"at": at}) for at in (1.0, 2.0))
    assert one == other


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "MAYBE"},
        {"decision": None},
        {"mode": "twice"},
        {"attempt": "1.1"},
        {"votes": [{"sink": "files"}]},
        {"votes": [{"sink": "files", "slice": "x", "fingerprint": "0:" + "0" * 16}]},
        {"replaces": {}},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(change: dict[str, Json]) -> None:
    good = Record(Attempt(1, 1), Decision.COMMIT, votes=(Vote("files", 0, Fingerprint()),)).to_json()
    with pytest.raises((TallystickError, LookupError, ValueError)):
        Record.from_json({**good, **change})


def test_every_outcome_is_confirmed_or_unsettled_or_an_ending_of_its_own() -> None:
    assert [outcome for outcome in Outcome if outcome.confirmed] == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]
    assert [outcome for outcome in Outcome if outcome.unsettled] == [Outcome.RETRY_LATER, Outcome.UNKNOWN]
    assert not Outcome.EXPIRED.confirmed
    assert not Outcome.REFUSED.unsettled
