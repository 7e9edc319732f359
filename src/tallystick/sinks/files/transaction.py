"""One slice on its way into staged files: which files are open, when one is full, what they will be called."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError
from tallystick.sinks.base import SliceContext
from tallystick.sinks.files.formats import LinesFile, OrcFile, ParquetFile, Writer, broken
from tallystick.sinks.files.partitions import split
from tallystick.sinks.files.settings import Settings
from tallystick.sinks.files.shape import NULL_IN
from tallystick.sinks.filesystem import Opened
from tallystick.sinks.refusals import Refusal, screened, where, without

BUFFERED_GROUPS_MAX = 2
"""Over all partitions of a slice, at most this many row groups wait in memory."""
HELD_BYTES_MAX = 64 << 20
"""Over all open files of a slice, at most so much of what is written waits in memory to be sent."""
SPLIT_FRACTION = 4
"""With partitions, batches are gathered to a quarter of a row group before they are split: many small parts cost more
than one large split."""


P = TypeVar("P")


class Transaction(Generic[P]):
    """Executor side of a file transaction: what is staged at ``place``, and how new files are begun there.

    ``create`` gets the number of a file and the path, relative to the target, under which it is to be published.
    """

    def __init__(
        self, settings: Settings, context: SliceContext, place: P, create: Callable[[int, str], Opened]
    ) -> None:
        self.settings = settings
        self.context = context
        self.place = place
        self.finals: list[str] = []
        self._create = create
        self._stem = file_stem(context)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: OrderedDict[str, tuple[Writer, float]] = OrderedDict()  # least recently written first

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        refused = screened(self.context, self._refused(rows), self._error)
        rows = without(rows, refused)
        if self.settings.required and NULL_IN in rows.schema.names:
            rows = rows.drop_columns([NULL_IN])
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if not self.settings.partition_by or self._waiting_bytes >= self.settings.group_bytes // SPLIT_FRACTION:
            self._split_waiting()
        return refused

    def last_steps(self) -> list[Callable[[], None]]:
        """All rows are here: begin no more files, and give the steps that close those which are open."""
        self._split_waiting()
        return [lambda folder=folder: self._close(folder) for folder in self._open]  # type: ignore[misc]

    def discard(self) -> None:
        self._waiting.clear()
        for writer, _ in self._open.values():
            writer.discard()
        self._open.clear()

    def _split_waiting(self) -> None:
        batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in batches:
            for folder, part in split(batch, self.settings.partition_by):
                self._write_part(folder, part)
            self._bound_memory()

    def _write_part(self, folder: str, part: pa.RecordBatch) -> None:
        if folder in self._open and self._is_over(*self._open[folder]):
            self._open.move_to_end(folder, last=False)
            self._close_oldest()
        if folder not in self._open:
            while len(self._open) >= self.settings.spec.open_files_max:
                self._close_oldest()
            self._open[folder] = (self._new_writer(folder, part.schema), time.monotonic())
        self._open.move_to_end(folder)
        self._open[folder][0].write(part)

    def _is_over(self, writer: Writer, opened_at_s: float) -> bool:
        """Monotonic time: a clock that is set back neither keeps a file open for ever nor rolls it at once."""
        roll_bytes, roll_age_s = self.settings.roll_bytes, self.settings.roll_age_s
        if roll_bytes is not None and writer.written_bytes() >= roll_bytes:
            return True
        return roll_age_s is not None and time.monotonic() - opened_at_s >= roll_age_s

    def _bound_memory(self) -> None:
        writers = sorted((writer for writer, _ in self._open.values()), key=lambda writer: writer.buffered_bytes)
        buffered = sum(writer.buffered_bytes for writer in writers)
        while buffered > BUFFERED_GROUPS_MAX * self.settings.row_group_bytes:
            largest = writers.pop()
            buffered -= largest.buffered_bytes
            largest.flush()
        while sum(writer.held_bytes for writer, _ in self._open.values()) > HELD_BYTES_MAX:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._close(next(iter(self._open)))

    def _close(self, folder: str) -> None:
        """Taken out only when closed, so that `discard` still finds it if closing fails."""
        self._open[folder][0].close()
        del self._open[folder]

    def _new_writer(self, folder: str, schema: pa.Schema) -> Writer:
        settings, number = self.settings, len(self.finals)
        name = f"{self._stem.format(number=number)}{settings.extension}"
        final = f"{folder}/{name}" if folder else name
        opened = self._create(number, final)
        self.finals.append(final)
        if settings.format == "parquet":
            return ParquetFile(opened, schema, settings.codec, settings.group_bytes)
        if settings.format == "orc":
            return OrcFile(opened, settings.codec, settings.group_bytes)
        header = schema.names[0] if settings.header else None
        return LinesFile(opened, settings.codec, header, breakable=settings.format != "text")

    def _refused(self, rows: pa.RecordBatch) -> Iterator[Refusal]:
        """Nulls where none may be, and line breaks in a text file, which would give them back as two rows."""
        for name in self.settings.required:
            if name in rows.schema.names:
                yield from where(rows.column(name).is_null(), self._null_in(name), name)
        if self.settings.required and NULL_IN in rows.schema.names:
            column = rows.column(NULL_IN)
            for name in pc.unique(column.drop_null()).to_pylist():
                yield from where(pc.equal(column, name), self._null_in(name), name)
        if self.settings.format == "text" and self.context.dead_letters:
            name = next(name for name in rows.schema.names if name not in (*self.settings.partition_by, NULL_IN))
            yield from where(broken(rows.column(name)), f"the text column {name!r} has a line break in it")

    def _null_in(self, column: str) -> str:
        return f"null in {column!r}, which {self.settings.target} requires"

    def _error(self, found: Refusal) -> RowRefusedError:
        return RowRefusedError(
            f"a row has {found.why}: filter such rows out before the sink, or take the column out of required",
            column=found.column,
        )


def file_stem(context: SliceContext) -> str:
    """Sorts by epoch, and is unique: the tags keep apart jobs, and sinks of one job, that publish into one folder."""
    attempt = context.attempt
    return (
        f"part-{attempt.epoch:012d}-{context.slice:06d}-{attempt.generation:07d}-{context.task:09d}-"
        "{number:04d}" + f"-{job_tag(context.job_id)}{_tag(f'{context.job_id}/{context.sink}', 2)}"
    )


def job_tag(job_id: str) -> str:
    """How the last part of the names of a job's files begins."""
    return _tag(job_id, 4)


def _tag(text: str, size_bytes: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size_bytes).hexdigest()
