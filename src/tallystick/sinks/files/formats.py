"""The file formats: what each is called, how it may be compressed, and how Arrow batches become its bytes.

Nothing here touches single rows in Python. Each writer keeps a bounded part of its file in memory and says how much.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError
from tallystick.sinks.filesystem import Opened


@dataclass(frozen=True)
class Format:
    """``compressions`` maps the names that a user may give to (Arrow's name, what is added to the file's name).

    ``open_files_max`` bounds the memory that lives inside writers, where it cannot be counted.
    """

    name: str
    compressions: Mapping[str, tuple[str | None, str]]
    default: str
    open_files_max: int = 200
    options: frozenset[str] = frozenset()

    def extension(self, compression: str) -> str:
        return f".{'txt' if self.name == 'text' else self.name}{self.compressions[compression][1]}"


_TEXT_COMPRESSIONS: Mapping[str, tuple[str | None, str]] = {
    "none": (None, ""),
    "gzip": ("gzip", ".gz"),
    "bzip2": ("bz2", ".bz2"),
    "zstd": ("zstd", ".zst"),
    "lz4": ("lz4", ".lz4"),
}
_TIMES = frozenset({"dateFormat", "timeZone", "timestampFormat", "timestampNTZFormat", "locale"})

FORMATS = {
    spec.name: spec
    for spec in (
        Format(
            "parquet",
            {name: (name, "") for name in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")},
            "snappy",
        ),
        Format(
            "orc",
            {
                "none": ("uncompressed", ""),
                "snappy": ("snappy", ""),
                "zlib": ("zlib", ""),
                "zstd": ("zstd", ""),
                "lz4": ("lz4", ""),
            },
            "zstd",
            open_files_max=16,
        ),
        Format("json", _TEXT_COMPRESSIONS, "none", options=_TIMES | {"ignoreNullFields"}),
        Format(
            "csv",
            _TEXT_COMPRESSIONS,
            "none",
            options=_TIMES
            | {
                "charToEscapeQuoteEscaping",
                "emptyValue",
                "escape",
                "escapeQuotes",
                "ignoreLeadingWhiteSpace",
                "ignoreTrailingWhiteSpace",
                "nullValue",
                "quote",
                "quoteAll",
                "sep",
            },
        ),
        Format("text", _TEXT_COMPRESSIONS, "none"),
    )
}


class Writer(ABC):
    """One staged file. Used by one task; `close` or `discard` ends it."""

    buffered_bytes = 0
    """Rows in memory that `flush` would write."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._file = opened.file

    @property
    def held_bytes(self) -> int:
        """Bytes of the file that are in memory, and leave it only when the file is closed or grows."""
        return self._opened.held_bytes()

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; some may stay in memory until `flush`."""

    def flush(self) -> None:
        """Give memory back by writing what is buffered."""

    def written_bytes(self) -> int:
        """How large the file is so far, without the rows that are still in memory."""
        return int(self._file.tell())

    @abstractmethod
    def close(self) -> None:
        """Write everything and close. The file is whole afterwards, but not yet fsynced."""

    @abstractmethod
    def discard(self) -> None:
        """Close without caring what the file holds; never raises because of a full disk."""


class ParquetFile(Writer):
    """Batches wait until a row group is full: row groups, not Spark's batches, decide how well a file reads."""

    def __init__(self, opened: Opened, schema: pa.Schema, compression: str | None, group_bytes: int) -> None:
        import pyarrow.parquet as pq

        super().__init__(opened)
        self._group_bytes = group_bytes
        self._batches: list[pa.RecordBatch] = []
        # microseconds are what Spark, pandas and DuckDB all read; nanoseconds that would be lost raise instead
        self._writer = pq.ParquetWriter(
            self._file, schema, compression=compression, version="2.6", use_dictionary=True, coerce_timestamps="us"
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self.buffered_bytes += rows.nbytes
        if self.buffered_bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._batches, self.buffered_bytes = [], 0
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._file.close()

    def discard(self) -> None:
        self._batches = []
        self._writer.is_open = False  # or its finaliser would try to write a footer into a closed file
        self._opened.abandon()


class OrcFile(Writer):
    """ORC's writer does its own buffering, up to a stripe."""

    def __init__(self, opened: Opened, compression: str | None, stripe_bytes: int) -> None:
        import pyarrow.orc as orc

        super().__init__(opened)
        self._writer = orc.ORCWriter(self._file, compression=compression, stripe_size=stripe_bytes)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write(pa.Table.from_batches([rows]))

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def discard(self) -> None:
        try:
            self._writer.close()
        except (OSError, pa.ArrowException):
            self._writer.is_open = False  # the disk is full or gone; the file is deleted anyway
        self._opened.abandon()


class LinesFile(Writer):
    """One string column, one line per row: JSON lines, CSV and text, which Spark has already put into words."""

    def __init__(self, opened: Opened, compression: str | None, header: str | None, breakable: bool) -> None:
        super().__init__(opened)
        self._breakable = breakable
        self._stream = pa.CompressedOutputStream(self._file, compression) if compression else self._file
        if header is not None:
            self._stream.write(f"{header}\n".encode())

    def write(self, rows: pa.RecordBatch) -> None:
        values = rows.column(0)
        if not self._breakable:
            refuse_line_breaks(values, rows.schema.field(0).name)
        self._stream.write(lines(values))

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; the file is deleted anyway
            self._stream.close()
        self._opened.abandon()


def lines(values: pa.Array) -> Any:
    """All values, each followed by a line break, as one buffer. Null is an empty line, as in Spark's text files."""
    # 64-bit offsets: with the line breaks, a batch that just fits 32-bit offsets would not any more
    wide = pc.fill_null(values.cast(pa.large_string()), "")
    joined = pc.binary_join_element_wise(wide, pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string()))
    _, offsets, data = joined.buffers()
    if len(joined) == 0 or data is None:
        return b""
    bounds = memoryview(offsets).cast("q")
    start, end = bounds[joined.offset], bounds[joined.offset + len(joined)]
    return data.slice(start, end - start)


def broken(values: pa.Array) -> pa.Array:
    """Marks the texts that have a line break in them."""
    return pc.match_substring_regex(values, r"[\n\r]")


def refuse_line_breaks(values: pa.Array, column: str) -> None:
    """A text file has no way to say that a line break belongs to a row: it would be read back as two rows."""
    if pc.any(broken(values)).as_py():
        raise RowRefusedError(
            f"a row of the text column {column!r} has a line break in it, and a text file would give it back as two "
            "rows: remove it with regexp_replace, or write format='json'",
            column=column,
        )
