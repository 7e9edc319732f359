"""Counting is the prover's eye: it must see every loss, repetition and phantom, and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.prover import Tally, tally

bags = st.lists(st.integers(0, 6), max_size=20)


@given(bags, bags)
def test_the_numbers_account_for_every_row(expected: list[int], delivered: list[int]) -> None:
    found = tally(expected, delivered)
    assert (found.expected, found.delivered) == (len(expected), len(delivered))
    assert found.delivered == found.expected - found.lost + found.repeated + found.phantom
    assert min(found.lost, found.repeated, found.phantom) >= 0
    assert found.exact == (Counter(expected) == Counter(delivered))


@given(bags, st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[int], chance: random.Random) -> None:
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert tally(rows, shuffled).exact


@pytest.mark.parametrize(
    ("expected", "delivered", "verdict"),
    [
        ("", "", Tally(0, 0, 0, 0, 0)),
        ("ab", "ba", Tally(2, 2, 0, 0, 0)),
        ("ab", "a", Tally(2, 1, 1, 0, 0)),
        ("ab", "aab", Tally(2, 3, 0, 1, 0)),
        ("ab", "abx", Tally(2, 3, 0, 0, 1)),
        ("aab", "ab", Tally(3, 2, 1, 0, 0)),
        ("ab", "aax", Tally(2, 3, 1, 1, 1)),
        ("ab", "", Tally(2, 0, 2, 0, 0)),
        ("", "xx", Tally(0, 2, 0, 0, 2)),
    ],
)
def test_verdicts(expected: str, delivered: str, verdict: Tally) -> None:
    assert tally(expected, delivered) == verdict


def test_a_loss_and_a_repetition_do_not_make_up_for_each_other() -> None:
    found = tally("ab", "aa")
    assert not found.exact
    assert (found.lost, found.repeated) == (1, 1)


def test_streams_are_counted_too() -> None:
    listed = [1, 2, 3]
    assert tally(iter(listed), (value for value in listed)).exact
