"""Reading a log by offset, from any process, while the receiver writes.

Only what is durable is offered: an offset below `LogReader.durable` was synced before it was named, so it never comes
to stand for another record, not even after a power failure. Reading checks every block; what is missing or damaged is
an error that names the file.
"""

from __future__ import annotations

import json
import mmap
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tallystick.errors import ReceiverLogCorruptError, SourceError
from tallystick.receiver.disk import Mark
from tallystick.receiver.format import (
    SEGMENT_HEAD,
    BlockHead,
    Record,
    decode_block,
    is_whole,
    parse_block_head,
    parse_segment_head,
)

SUFFIX = ".log"


@dataclass(frozen=True, order=True)
class Segment:
    first: int
    path: Path


def segments_of(folder: Path) -> list[Segment]:
    """In order. Empty if the folder is not there."""
    found = folder.glob(f"[0-9]*{SUFFIX}")
    return sorted(Segment(int(path.name.removesuffix(SUFFIX)), path) for path in found)


def segment_path(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}{SUFFIX}"


@contextmanager
def opened(segment: Segment, log_id: bytes | None = None) -> Iterator[memoryview]:
    """The bytes of a segment as they are now. Its head is checked."""
    where = str(segment.path)
    try:
        handle = segment.path.open("rb")
    except FileNotFoundError as error:
        raise SourceError(f"{where} is gone: its records were settled and removed, or somebody deleted it") from error
    with handle:
        if segment.path.stat().st_size < SEGMENT_HEAD.size:
            raise ReceiverLogCorruptError(f"{where} is shorter than its own head. restore it from a copy", file=where)
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            found, first = parse_segment_head(data[: SEGMENT_HEAD.size], where)
            if first != segment.first or log_id not in (None, found):
                raise ReceiverLogCorruptError(
                    f"{where} belongs to another log or another place: found the log {found.hex()} at offset {first}. "
                    "put back the file that was here",
                    file=where,
                )
            yield data


def blocks(data: memoryview, first: int) -> Iterator[tuple[int, BlockHead]]:
    """Places and heads of blocks, in order, up to the first that is torn or does not go on where the last ended.

    Bodies are not checked.
    """
    at, expected = SEGMENT_HEAD.size, first
    while (head := parse_block_head(data, at)) is not None:
        if head.first != expected or at + head.block_bytes > len(data):
            return
        yield at, head
        at, expected = at + head.block_bytes, head.stop


class LogReader:
    """A log as a reader sees it. Cheap to make; holds nothing open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments_folder = folder / "segments"

    @property
    def log_id(self) -> str | None:
        """Made once in the life of a log; None if there is no log yet."""
        try:
            return str(json.loads((self.folder / "log.json").read_text())["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            where = str(self.folder / "log.json")
            raise ReceiverLogCorruptError(f"{where} is torn or not ours: {error}. restore it", file=where) from error

    @property
    def durable(self) -> int:
        """Records below this offset may be read."""
        return Mark(self.folder / "durable").read() or 0

    @property
    def first(self) -> int:
        """The oldest offset that is still there."""
        found = segments_of(self.segments_folder)
        return found[0].first if found else 0

    @property
    def settled(self) -> int:
        """Records below this offset are never asked for again."""
        return Mark(self.folder / "settled").read() or 0

    def settle(self, offset: int) -> None:
        """Records below this offset are never asked for again: retention may have them."""
        if offset > self.settled:
            Mark(self.folder / "settled").write(offset)

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Record]]:
        """Every record from ``start`` up to, not including, ``stop``, with its offset. All of them, or an error."""
        expected = start
        for offset, record in self._found(start, stop):
            if offset != expected:
                break
            expected += 1
            yield offset, record
        if expected < stop:
            raise self._gap(expected, stop)

    def _found(self, start: int, stop: int) -> Iterator[tuple[int, Record]]:
        found = segments_of(self.segments_folder)
        begin = max(0, bisect_right([segment.first for segment in found], start) - 1)
        for segment in found[begin:]:
            if segment.first >= stop:
                return
            with opened(segment) as data:
                for at, head in blocks(data, segment.first):
                    if head.first >= stop:
                        return
                    if head.stop > start:
                        _need_whole(data, at, head, segment)
                        yield from _within(data, at, head, start, stop)

    def _gap(self, missing: int, stop: int) -> SourceError:
        if missing < self.first:
            return SourceError(
                f"the receiver log {self.folder} begins at offset {self.first}, but {missing} to {stop - 1} are to be "
                "read: they were settled and removed. the checkpoint was rewound, or another job reads this log too; "
                "one log is for one job. raise keep=, or start with a new checkpoint"
            )
        return ReceiverLogCorruptError(
            f"the receiver log {self.folder} has no record {missing}, though {stop - 1} was durable: a segment was cut "
            "or deleted. restore it from a copy",
            file=str(self.segments_folder),
        )


def _need_whole(data: memoryview, at: int, head: BlockHead, segment: Segment) -> None:
    if not is_whole(data, at, head):
        raise ReceiverLogCorruptError(
            f"{segment.path} is damaged at byte {at}: the checksum of records {head.first} to {head.stop - 1} is "
            "wrong. nothing was skipped. restore the file from a copy",
            file=str(segment.path),
        )


def _within(data: memoryview, at: int, head: BlockHead, start: int, stop: int) -> Iterator[tuple[int, Record]]:
    for offset, record in enumerate(decode_block(data, at, head), head.first):
        if start <= offset < stop:
            yield offset, record
