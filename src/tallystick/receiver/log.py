"""The receiver's side of the log: who appends, and why nothing acknowledged is lost or read twice.

1.  *One writer.* The log is locked for as long as its receiver lives; a second one does not start.
2.  *A block is whole or was never acknowledged.* `append` writes a block with one call, syncs the file, then writes the
    mark ``durable``, and returns. Senders hear of it after that, and readers look below the mark only.
3.  *A torn tail is not a loss.* What a killed receiver leaves behind the mark is at most one block. If it is whole it
    is kept: its sender does not know, will send it again, and is known by its ids. If it is torn it is cut off: nobody
    was told that it arrived. Damage before the mark, or with whole blocks behind it, is no torn tail, and an error.
4.  *A failed sync cannot be repeated*: the kernel may have dropped the pages and says so once. So it ends the receiver,
    and the next one writes what it finds behind the mark again before it trusts it.
5.  *Bounded.* A segment goes when all its records are settled and it is older than ``keep``; earlier if the log is at
    its bound. If nothing settled is left to remove, the log is full, and its receiver stops receiving.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tallystick import killpoints
from tallystick.errors import ReceiverLogCorruptError, SourceError
from tallystick.receiver.disk import Lock, Mark, make_folder, replace_file, sync_folder, write_all
from tallystick.receiver.format import (
    BLOCK_MAGIC,
    SEGMENT_HEAD,
    BlockHead,
    Record,
    decode_block,
    encode_block,
    is_whole,
    parse_block_head,
    segment_head,
)
from tallystick.receiver.reading import LogReader, Segment, blocks, opened, segment_path, segments_of
from tallystick.receiver.window import Window

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class LogSettings:
    """How much of the disk a log may have, and for how long. ``window`` is the number of ids kept to know repeats."""

    max_bytes: int = 10 << 30
    segment_bytes: int = 64 << 20
    keep_s: float = 3600.0
    window: int = 100_000


class LogFullError(Exception):
    """Nothing was appended: the disk is full. For the pump, which waits; it never leaves the receiver."""


class ReceiverLog:
    """The log as its one writer sees it. A context manager: locked and recovered inside.

    ``offset`` is that of the next record; ``ids`` the window of ids that were appended.
    """

    def __init__(self, folder: Path, settings: LogSettings | None = None) -> None:
        self.folder = folder.absolute()
        self.settings = settings or LogSettings()
        self.ids = Window(self.settings.window)
        self.offset = 0
        self.last: Record | None = None
        self.cut_bytes = 0
        self._segments = self.folder / "segments"
        self._lock = Lock(self.folder / "lock")
        self._durable = Mark(self.folder / "durable")
        self._settled = Mark(self.folder / "settled")
        self._id = b""
        self._handle: int | None = None
        self._size = 0
        self._older_bytes = 0
        self._appends = 0

    def __enter__(self) -> ReceiverLog:
        make_folder(self._segments)
        if not self._lock.take():
            raise SourceError(
                f"another receiver writes the log {self.folder}: only one can. stop it first, or choose another log"
            )
        try:
            self._identify()
            self._recover()
            self._load_ids()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._lock.release()

    @property
    def disk_bytes(self) -> int:
        return self._older_bytes + self._size

    @property
    def full(self) -> bool:
        return self.disk_bytes >= self.settings.max_bytes

    def append(self, records: Sequence[Record]) -> None:
        """One group commit: all of them are durable when this returns. `LogFullError` if the disk has no room."""
        if not records:
            return
        if self._size >= self.settings.segment_bytes:
            self._roll()
        block = encode_block(self.offset, records, time.time_ns() // 1000)
        killpoints.reach("receiver-before-append", self._appends)
        self._write(block)
        killpoints.reach("receiver-after-append", self._appends)
        os.fdatasync(self._open_handle())
        killpoints.reach("receiver-after-sync", self._appends)
        self._size += len(block)
        self.offset += len(records)
        self.last = records[-1]
        self._durable.write(self.offset)
        self._appends += 1

    def remove_settled(self) -> int:
        """Let go of what nobody will ask for again; returns how many segments went."""
        settled = self._settled.read() or 0
        segments = segments_of(self._segments)
        removed = 0
        for segment, following in pairwise(segments):
            if following.first > settled:
                break
            if not self.full and time.time() - segment.path.stat().st_mtime < self.settings.keep_s:
                break
            if removed == 0:
                replace_file(self.folder / "ids", self.ids.dump())
            size = segment.path.stat().st_size
            killpoints.reach("receiver-before-removal", removed)
            segment.path.unlink()
            killpoints.reach("receiver-after-removal", removed)
            self._older_bytes -= size
            removed += 1
        return removed

    def _write(self, block: bytes) -> None:
        handle = self._open_handle()
        if killpoints.armed("receiver-inside-append", self._appends):
            write_all(handle, block[: len(block) // 2])
            killpoints.reach("receiver-inside-append", self._appends)
        try:
            write_all(handle, block)
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.ftruncate(handle, self._size)  # half a block must not stand before the next one
            os.lseek(handle, self._size, os.SEEK_SET)
            raise LogFullError(error.strerror) from error

    def _open_handle(self) -> int:
        if self._handle is None:
            raise SourceError(f"the receiver log {self.folder} is not open")
        return self._handle

    def _identify(self) -> None:
        known = LogReader(self.folder).log_id
        if known is None:
            if segments_of(self._segments):
                where = str(self.folder / "log.json")
                raise ReceiverLogCorruptError(f"{where} is gone, but its segments are there. restore it", file=where)
            known = uuid.uuid4().hex
            replace_file(self.folder / "log.json", json.dumps({"version": 1, "id": known}).encode() + b"\n")
        self._id = bytes.fromhex(known)

    def _recover(self) -> None:
        """Find the end of the log, cut a torn tail off, and make durable what is kept."""
        for leftover in self._segments.glob(".*.tmp"):
            leftover.unlink()
        found = segments_of(self._segments)
        if not found:
            if (self._durable.read() or 0) > 0:
                raise self._lost(0)
            self._start_segment(0)
            self._durable.write(0)
            return
        newest = found[-1]
        end, self.offset, self.last = self._end_of(newest)
        durable = self._durable.read() or 0
        if self.offset < durable:
            raise self._lost(self.offset)
        self._older_bytes = sum(segment.path.stat().st_size for segment in found[:-1])
        self._handle = os.open(newest.path, os.O_RDWR | os.O_CLOEXEC)
        self._keep_up_to(end, durable, newest)
        self._size = end
        self._durable.write(self.offset)
        if self.last is None and len(found) > 1:
            self.last = self._end_of(found[-2])[2]

    def _keep_up_to(self, end: int, durable: int, newest: Segment) -> None:
        handle = self._open_handle()
        self.cut_bytes = newest.path.stat().st_size - end
        os.ftruncate(handle, end)
        doubtful = _place_of(newest, durable, end)
        kept = os.pread(handle, end - doubtful, doubtful)
        os.lseek(handle, doubtful, os.SEEK_SET)
        write_all(handle, kept)
        os.fsync(handle)
        sync_folder(self._segments)

    def _end_of(self, segment: Segment) -> tuple[int, int, Record | None]:
        """Where its whole blocks end: in bytes, in offsets; and its last record."""
        end, offset = SEGMENT_HEAD.size, segment.first
        newest: tuple[int, BlockHead] | None = None
        with opened(segment, self._id) as data:
            for at, head in blocks(data, segment.first):
                if not is_whole(data, at, head):
                    break
                end, offset, newest = at + head.block_bytes, head.stop, (at, head)
            last = list(decode_block(data, *newest))[-1] if newest is not None else None
            if _has_whole_block(data, end):
                where = str(segment.path)
                raise ReceiverLogCorruptError(
                    f"{where} is damaged at byte {end}, with whole blocks behind it: that is no torn tail. nothing was "
                    "cut off. restore the file from a copy",
                    file=where,
                )
        return end, offset, last

    def _lost(self, offset: int) -> ReceiverLogCorruptError:
        return ReceiverLogCorruptError(
            f"the receiver log {self.folder} ends at offset {offset}, but {self._durable.read()} was durable: records "
            "that were acknowledged are gone. restore its segments from a copy, or move the folder away and start with "
            "a new log and a new checkpoint",
            file=str(self._segments),
        )

    def _load_ids(self) -> None:
        kept = self.folder / "ids"
        if kept.exists():
            self.ids.load(kept.read_bytes())
        reader = LogReader(self.folder)
        for _, record in reader.records(max(reader.first, self.offset - self.settings.window), self.offset):
            self.ids.is_new(record.id)

    def _roll(self) -> None:
        os.fsync(self._open_handle())
        os.close(self._open_handle())
        self._handle = None
        self._older_bytes += self._size
        self._start_segment(self.offset)

    def _start_segment(self, first: int) -> None:
        path = segment_path(self._segments, first)
        try:
            replace_file(path, segment_head(self._id, first))
        except OSError as error:
            if error.errno in FULL:
                self._reopen_newest()
                raise LogFullError(error.strerror) from error
            raise
        killpoints.reach("receiver-new-segment", self._appends)
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.lseek(self._handle, 0, os.SEEK_END)
        self._size = SEGMENT_HEAD.size

    def _reopen_newest(self) -> None:
        found = segments_of(self._segments)
        if found:
            self._size = found[-1].path.stat().st_size
            self._older_bytes -= self._size
            self._handle = os.open(found[-1].path, os.O_RDWR | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)


def _place_of(segment: Segment, offset: int, end: int) -> int:
    """Where the block with this offset begins, or the end if it is not in this segment."""
    with opened(segment) as data:
        for at, head in blocks(data, segment.first):
            if head.stop > offset:
                return min(at, end)
    return end


def _has_whole_block(data: memoryview, start: int) -> bool:
    text = bytes(data[start:])
    at = text.find(BLOCK_MAGIC, 1)
    while at >= 0:
        head = parse_block_head(text, at)
        if head is not None and head.count and is_whole(text, at, head):
            return True
        at = text.find(BLOCK_MAGIC, at + 1)
    return False
