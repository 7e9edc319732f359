"""The marks of Kinesis records: print and parse, the shard they choose, and which records are repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import TallystickError
from tallystick.kinesis import KEY_LETTERS_MAX, Mark, Repeats, hash_key, parse

MARKS = st.builds(
    Mark,
    st.text("0123456789abcdef", min_size=12, max_size=12),
    st.integers(0, 10**12),
    st.integers(0, 10**7),
    st.integers(0, 1 << 14),
    st.integers(0, 10**11),
)


@given(MARKS, st.text(max_size=KEY_LETTERS_MAX))
def test_a_mark_comes_back_with_the_key(mark: Mark, key: str) -> None:
    named = mark.partition_key(key)
    assert parse(named) == (key, mark)
    assert len(named) <= 256, "what Kinesis takes"


def test_keys_that_look_like_marks_or_are_foreign() -> None:
    mark = Mark("abc", 1, 2, 3, 4)
    assert parse(mark.partition_key("k~ts1:abc:9:9:9:9")) == ("k~ts1:abc:9:9:9:9", mark)
    for foreign in ("", "key", "k~ts1:abc:1:2:3", "k~ts2:abc:1:2:3:4"):
        assert parse(foreign) == (foreign, None)
    with pytest.raises(TallystickError, match="at most 180 letters"):
        mark.partition_key("k" * 181)


def test_the_hash_is_that_of_kinesis() -> None:
    """The MD5 of the key as a number: 0x900150983cd24fb0d6963f7d28e17f72 for "abc"."""
    assert hash_key("abc") == str(0x900150983CD24FB0D6963F7D28E17F72)


def kept(shard: Sequence[tuple[Mark | None, bytes]], stop_at: int = -1) -> list[bytes]:
    repeats, found = Repeats(), []
    for number, (mark, data) in enumerate(shard):
        if number == stop_at:
            repeats = Repeats.from_json(json.loads(json.dumps(repeats.to_json())))
        if not repeats.drop(mark, data):
            found.append(data)
    return found


def sent(epoch: int, rows: Sequence[str], generation: int = 1, slice_: int = 0) -> list[tuple[Mark | None, bytes]]:
    return [(Mark("job", epoch, generation, slice_, n), row.encode()) for n, row in enumerate(rows)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_epochs_that_break_off_and_are_sent_again_are_read_once(sizes: list[int], data: st.DataObject) -> None:
    """Each epoch is sent in part, any number of times, then in full; old ones come late; the reader stops anywhere."""
    shard: list[tuple[Mark | None, bytes]] = []
    wanted: list[bytes] = []
    whole: list[list[tuple[Mark | None, bytes]]] = []
    for epoch, size in enumerate(sizes):
        rows = [f"{epoch}.{n}" for n in range(size)]
        for generation, part in enumerate(data.draw(st.lists(st.integers(0, size), max_size=3))):
            shard += sent(epoch, rows, generation + 1)[:part]
        shard += sent(epoch, rows, 9)
        whole.append(sent(epoch, rows))
        if size:
            late = data.draw(st.integers(0, epoch))
            shard += whole[late] if sizes[late] else []
        wanted += [row.encode() for row in rows]
    assert kept(shard, data.draw(st.integers(0, len(shard)))) == wanted


def test_rows_that_come_out_in_another_order_are_never_lost() -> None:
    found = kept([*sent(1, ["a"]), *sent(1, ["b", "a", "c"], generation=2)])
    assert set(found) == {b"a", b"b", b"c"}


def test_what_other_programs_and_other_jobs_write_is_kept() -> None:
    other = (Mark("other", 1, 1, 0, 0), b"a")
    assert kept([(None, b"x"), (None, b"x"), *sent(1, ["a"]), other, *sent(1, ["a"])]) == [b"x", b"x", b"a", b"a"]
