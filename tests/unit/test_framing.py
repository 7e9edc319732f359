"""Where records of a byte stream end: however the bytes are cut, and whatever is wrong with them."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.receiver import Record
from tallystick.receiver.framing import Framing, Lengths, Lines
from tallystick.receiver.inlet import Refused


def values(framing: Framing, chunks: list[bytes]) -> list[bytes | str]:
    """Records as bytes, what was refused as its reason."""
    found = [each for chunk in chunks for each in framing.feed(chunk)] + framing.end("it ended")
    return [each.value if isinstance(each, Record) else each.reason for each in found]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[first:last] for first, last in itertools.pairwise(edges)]


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r"))), st.lists(st.integers())
)
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert values(Lines(100, None, {}), cut(data, places)) == lines


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers()))
def test_frames_are_the_same_however_they_are_cut(frames: list[bytes], places: list[int]) -> None:
    data = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    assert values(Lengths(100, None, {}), cut(data, places)) == frames


def test_half_a_record_is_refused_and_counted_as_such() -> None:
    assert values(Lines(100, None, {}), [b"one\ntw"]) == [b"one", "it ended in the middle of a record, after 2 bytes"]
    assert values(Lengths(100, None, {}), [b"\0\0\0\3ab"]) == ["it ended in the middle of a record, after 6 bytes"]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_huge_line_is_refused_once_and_the_next_one_is_read(chunk: int) -> None:
    data = b"a\n" + b"x" * 50 + b"\nb\n"
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    first, refused, last = values(Lines(10, None, {}), chunks)
    assert (first, last) == (b"a", b"b")
    assert "bytes" in str(refused)


def test_a_huge_frame_ends_the_connection() -> None:
    framing = Lengths(10, None, {})
    assert values(framing, [b"\0\0\0\1a" + struct.pack(">I", 1 << 30) + b"rest"]) == [
        b"a",
        f"a frame of {1 << 30} bytes, at most 10 allowed",
    ]
    assert framing.lost_its_way


def test_another_encoding_is_refused_with_the_place() -> None:
    [found] = Lines(100, "utf-8", {"sender": "me"}).feed(b"ok \xff\n")
    assert isinstance(found, Refused)
    assert found.reason == "it is no utf-8: invalid start byte at byte 3"
    assert found.record == Record(b"ok \xff", attributes={"sender": "me"})
