"""The receiver log: group commits, torn tails, damage, retention, the bound; without a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import ReceiverLogCorruptError, SourceError
from tallystick.receiver import LogReader, LogSettings, ReceiverLog, Record
from tallystick.receiver.disk import Mark
from tallystick.receiver.format import decode_block, encode_block, is_whole, parse_block_head
from tallystick.receiver.reading import Segment, segments_of

SMALL = LogSettings(max_bytes=1 << 20, segment_bytes=1000, keep_s=3600, window=100)


def record(number: int) -> Record:
    return Record(f"value {number}".encode(), f"id-{number}", number + 1, {"n": str(number)})


def filled(folder: Path, blocks: int = 5, per_block: int = 4, settings: LogSettings = SMALL) -> list[Record]:
    """So many blocks; returns all records of the log."""
    with ReceiverLog(folder, settings) as log:
        for _ in range(blocks):
            log.append([record(log.offset + number) for number in range(per_block)])
        return [record(number) for number in range(log.offset)]


def read(folder: Path, start: int = 0, stop: int | None = None) -> list[Record]:
    reader = LogReader(folder)
    return [found for _, found in reader.records(start, reader.durable if stop is None else stop)]


def newest(folder: Path) -> Segment:
    return segments_of(folder / "segments")[-1]


RECORDS = st.builds(
    Record,
    st.binary(max_size=50),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    st.integers(-(1 << 62), 1 << 62),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


@given(st.lists(RECORDS, max_size=5), st.integers(0, 1 << 62), st.binary(max_size=9))
def test_a_block_prints_and_parses(records: list[Record], first: int, before: bytes) -> None:
    data = before + encode_block(first, records)
    head = parse_block_head(data, len(before))
    assert head is not None
    assert is_whole(data, len(before), head)
    assert (head.first, head.stop) == (first, first + len(records))
    assert list(decode_block(data, len(before), head)) == records


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_any_flipped_bit_and_any_missing_byte_is_noticed(records: list[Record], data: st.DataObject) -> None:
    block = encode_block(7, records)
    at = data.draw(st.integers(0, len(block) - 1))
    flipped = bytearray(block)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), block[:at]):
        head = parse_block_head(damaged, 0)
        assert head is None or not is_whole(damaged, 0, head)


def test_records_are_read_back_from_any_offset_over_several_segments(tmp_path: Path) -> None:
    written = filled(tmp_path, blocks=20)
    assert len(segments_of(tmp_path / "segments")) > 1
    assert read(tmp_path) == written
    for start in (0, 1, 3, 4, 41, 79, 80):
        assert read(tmp_path, start) == written[start:]
    assert read(tmp_path, 5, 7) == written[5:7]


def test_a_second_receiver_does_not_start_and_a_closed_log_goes_on(tmp_path: Path) -> None:
    written = filled(tmp_path)
    with ReceiverLog(tmp_path, SMALL) as log:
        assert log.offset == len(written)
        assert log.last == written[-1]
        with pytest.raises(SourceError, match="another receiver writes the log"):
            ReceiverLog(tmp_path, SMALL).__enter__()
        log.append([record(len(written))])
    assert read(tmp_path) == [*written, record(len(written))]


@pytest.mark.parametrize("kept_share", [0.0, 0.1, 0.5, 0.99])
def test_a_torn_tail_is_cut_off_and_the_log_goes_on(tmp_path: Path, kept_share: float) -> None:
    """What a kill or a power failure leaves of the block that was being written: never acknowledged, never shown."""
    written = filled(tmp_path, settings=LogSettings())
    block = encode_block(len(written), [record(99)])
    torn = block[: int(len(block) * kept_share)]
    with newest(tmp_path).path.open("ab") as segment:
        segment.write(torn)
    assert read(tmp_path) == written
    with ReceiverLog(tmp_path) as log:
        assert log.cut_bytes == len(torn)
        assert log.offset == len(written)
        log.append([record(50)])
    assert read(tmp_path) == [*written, record(50)]


def test_a_whole_block_behind_the_mark_is_kept(tmp_path: Path) -> None:
    """Written, perhaps synced, not yet marked: it may have been about to be acknowledged."""
    written = filled(tmp_path, settings=LogSettings())
    with newest(tmp_path).path.open("ab") as segment:
        segment.write(encode_block(len(written), [record(77)]))
    assert LogReader(tmp_path).durable == len(written)
    assert read(tmp_path) == written
    with ReceiverLog(tmp_path) as log:
        assert not log.ids.is_new("id-77")
    assert read(tmp_path) == [*written, record(77)]


def test_damage_where_it_was_durable_is_an_error_for_reader_and_receiver(tmp_path: Path) -> None:
    filled(tmp_path, settings=LogSettings())
    path = newest(tmp_path).path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReceiverLogCorruptError, match="damaged at byte"):
        read(tmp_path)
    with pytest.raises(ReceiverLogCorruptError, match="whole blocks behind it"), ReceiverLog(tmp_path):
        pass
    assert path.read_bytes() == data, "a damaged log must be left as it is"


def test_a_cut_log_is_an_error_and_not_a_torn_tail(tmp_path: Path) -> None:
    filled(tmp_path, settings=LogSettings())
    os.truncate(newest(tmp_path).path, newest(tmp_path).path.stat().st_size - 3)
    with pytest.raises(ReceiverLogCorruptError, match="records that were acknowledged are gone"), ReceiverLog(tmp_path):
        pass
    with pytest.raises(ReceiverLogCorruptError, match="has no record 16"):
        read(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_deleted_segment_is_an_error(tmp_path: Path, which: int) -> None:
    filled(tmp_path, blocks=20)
    segments_of(tmp_path / "segments")[which].path.unlink()
    with pytest.raises(SourceError, match="has no record" if which else "begins at offset"):
        read(tmp_path)


def test_a_segment_of_another_log_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    filled(tmp_path / "b")
    newest(tmp_path / "b").path.write_bytes(newest(tmp_path / "a").path.read_bytes())
    with pytest.raises(ReceiverLogCorruptError, match="belongs to another log"), ReceiverLog(tmp_path / "b", SMALL):
        pass


def test_retention_takes_settled_segments_that_are_old_and_nothing_else(tmp_path: Path) -> None:
    written = filled(tmp_path, blocks=30)
    segments = segments_of(tmp_path / "segments")
    with ReceiverLog(tmp_path, SMALL) as log:
        assert log.remove_settled() == 0, "nothing is settled"
        LogReader(tmp_path).settle(segments[2].first)
        assert log.remove_settled() == 0, "settled, but younger than keep"
        for segment in segments:
            os.utime(segment.path, (1, 1))
        assert log.remove_settled() == 2
        assert LogReader(tmp_path).first == segments[2].first
        LogReader(tmp_path).settle(len(written))
        assert log.remove_settled() == len(segments) - 3, "the newest segment stays"
        assert not log.ids.is_new(written[-1].id)
    with pytest.raises(SourceError, match="were settled and removed"):
        read(tmp_path, 0)


def test_ids_of_removed_segments_are_still_known(tmp_path: Path) -> None:
    written = filled(tmp_path, blocks=15)
    LogReader(tmp_path).settle(len(written))
    for segment in segments_of(tmp_path / "segments"):
        os.utime(segment.path, (1, 1))
    with ReceiverLog(tmp_path, SMALL) as log:
        assert log.remove_settled() > 0
    with ReceiverLog(tmp_path, SMALL) as log:
        assert [each.id for each in written if log.ids.is_new(each.id)] == []
        assert log.ids.is_new("another")


def test_the_window_has_its_stated_size(tmp_path: Path) -> None:
    settings = LogSettings(window=10)
    filled(tmp_path, blocks=5, settings=settings)
    with ReceiverLog(tmp_path, settings) as log:
        assert [number for number in range(19, -1, -1) if not log.ids.is_new(f"id-{number}")] == list(range(19, 9, -1))


def test_at_its_bound_a_log_lets_settled_records_go_early_and_is_full_otherwise(tmp_path: Path) -> None:
    settings = LogSettings(max_bytes=3000, segment_bytes=1000)
    with ReceiverLog(tmp_path, settings) as log:
        while not log.full:
            log.append([record(log.offset)])
        assert log.remove_settled() == 0
        assert log.full
        LogReader(tmp_path).settle(log.offset)
        assert log.remove_settled() > 0
        assert not log.full


def test_a_mark_is_never_read_half(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "mark")
    assert mark.read() is None
    mark.write(12)
    assert mark.read() == 12
    (tmp_path / "mark").write_bytes(b"x" * 16)
    assert mark.read() is None
