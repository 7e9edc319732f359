"""One slice on its way into staged files: which files are open, when one is full, what they will be called."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from pathlib import Path

import pyarrow as pa

from tallystick.errors import RowRefusedError
from tallystick.records import Json
from tallystick.sinks.base import SliceContext
from tallystick.sinks.files.formats import LinesFile, OrcFile, ParquetFile, Writer
from tallystick.sinks.files.partitions import split
from tallystick.sinks.files.settings import Settings
from tallystick.sinks.files.shape import NULL_IN
from tallystick.sinks.staging import STAGED

BUFFERED_GROUPS_MAX = 2
"""Over all partitions of a slice, at most this many row groups wait in memory."""
SPLIT_FRACTION = 4
"""With partitions, batches are gathered to a quarter of a row group before they are split: many small parts cost more
than one large split."""


class Transaction:
    """Executor side of a file transaction. ``names`` are (staged, final) pairs, in the order of opening."""

    def __init__(self, settings: Settings, folder: Path, context: SliceContext) -> None:
        self.settings = settings
        self.folder = folder
        self.names: list[tuple[str, str]] = []
        self._stem = file_stem(context)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: OrderedDict[str, tuple[Writer, float]] = OrderedDict()  # least recently written first

    def write(self, rows: pa.RecordBatch) -> None:
        self._refuse_nulls(rows)
        if self.settings.required and NULL_IN in rows.schema.names:
            rows = rows.drop_columns([NULL_IN])
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if not self.settings.partition_by or self._waiting_bytes >= self.settings.group_bytes // SPLIT_FRACTION:
            self._split_waiting()

    def close(self) -> None:
        self._split_waiting()
        while self._open:
            self._close_oldest()

    def discard(self) -> None:
        self._waiting.clear()
        for writer, _ in self._open.values():
            writer.discard()
        self._open.clear()

    def files(self) -> Json:
        return [list(pair) for pair in self.names]

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

    def _close_oldest(self) -> None:
        """Taken out only when closed, so that `discard` still finds it if closing fails."""
        folder = next(iter(self._open))
        self._open[folder][0].close()
        del self._open[folder]

    def _new_writer(self, folder: str, schema: pa.Schema) -> Writer:
        settings, number = self.settings, len(self.names)
        staged = f"{number}{STAGED}"
        final = f"{self._stem.format(number=number)}{settings.extension}"
        self.names.append((staged, f"{folder}/{final}" if folder else final))
        path = self.folder / staged
        if settings.format == "parquet":
            return ParquetFile(path, schema, settings.codec, settings.group_bytes)
        if settings.format == "orc":
            return OrcFile(path, settings.codec, settings.group_bytes)
        header = schema.names[0] if settings.header else None
        return LinesFile(path, settings.codec, header, breakable=settings.format != "text")

    def _refuse_nulls(self, rows: pa.RecordBatch) -> None:
        for name in self.settings.required:
            if name in rows.schema.names and rows.column(name).null_count:
                self._refuse_null(name)
        if self.settings.required and NULL_IN in rows.schema.names:
            for name in rows.column(NULL_IN).drop_null()[:1].to_pylist():
                self._refuse_null(name)

    def _refuse_null(self, column: str) -> None:
        raise RowRefusedError(
            f"a row has null in {column!r}, which {self.settings.path} requires: filter such rows out before the "
            "sink, or take the column out of required",
            column=column,
        )


def file_stem(context: SliceContext) -> str:
    """Sorts by epoch, and is unique: the tag keeps apart jobs, and sinks of one job, that publish into one folder."""
    tag = hashlib.blake2b(f"{context.job_id}\n{context.sink}".encode(), digest_size=5).hexdigest()
    attempt = context.attempt
    return (
        f"part-{attempt.epoch:012d}-{context.slice:06d}-{attempt.generation:07d}-{context.task:09d}-"
        "{number:04d}" + f"-{tag}"
    )
