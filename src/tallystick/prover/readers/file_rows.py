"""The rows of a published file, whatever file system it is on: for the readers of folders and buckets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import orc, parquet

from tallystick.prover.readers.base import Item, row_text
from tallystick.sinks.files.settings import Settings


def is_visible(name: str) -> bool:
    """Readers leave out what begins with a dot or an underscore, folders too."""
    return not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)


def items_of(name: str, data: bytes, settings: Settings) -> tuple[Item, ...]:
    """``name`` is relative to the target; its folders are columns. What cannot be read is a row too: one that nobody
    sent."""
    folders = PurePosixPath(name).parts[:-1]
    columns = {unquote(key): unquote(value) for key, _, value in (part.partition("=") for part in folders)}
    return tuple(Item(row_text({**row, **columns})) for row in _rows(name, data, settings))


def _rows(name: str, data: bytes, settings: Settings) -> Iterator[Mapping[str, Any]]:
    try:
        if settings.format == "parquet":
            yield from parquet.ParquetFile(pa.BufferReader(data)).read().to_pylist()
        elif settings.format == "orc":
            yield from orc.ORCFile(pa.BufferReader(data)).read().to_pylist()
        else:
            lines = _lines(name, data)
            yield from (_parsed(line, settings.format) for line in (lines[1:] if settings.header else lines))
    except (pa.ArrowInvalid, OSError) as failure:
        yield {"unreadable file": PurePosixPath(name).name, "because": str(failure)[:200]}


def _lines(name: str, data: bytes) -> list[str]:
    compression = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}.get(PurePosixPath(name).suffix)
    with pa.input_stream(pa.py_buffer(data), compression=compression) as stream:
        return bytes(stream.read()).decode(errors="replace").splitlines()


def _parsed(line: str, format_name: str) -> Mapping[str, Any]:
    if format_name != "json":
        return {"line": line}
    try:
        row = json.loads(line)
    except ValueError:
        return {"unreadable line": line[:200]}
    return row if isinstance(row, dict) else {"unreadable line": line[:200]}
