"""Folders of HDFS for tests: made, read and looked at with a client of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tallystick.records import Json
from tallystick.sinks.hdfs.filesystem import HdfsFiles


def new_folder(address: str) -> str:
    return f"{address}/{uuid.uuid4().hex}/out"


def port_of(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


def files_below(uri: str) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, hidden or not: its path and its bytes."""
    parts = urlsplit(uri)
    files = HdfsFiles(f"hdfs://{parts.netloc}")
    for status in files._client.list_status(parts.path, recursive=True):
        if not status.isdir:
            yield status.path, files.read(PurePosixPath(status.path))


def rows_below(uri: str, extension: str = ".parquet") -> list[Json]:
    found: list[Json] = []
    for path, data in files_below(uri):
        if not path.endswith(extension):
            continue
        if extension == ".parquet":
            found += parquet_rows(data)
        elif extension == ".orc":
            found += orc.read_table(pa.BufferReader(data)).to_pylist()
        else:
            found += data.decode().splitlines()
    return found


def parquet_rows(data: bytes) -> list[Json]:
    return pq.read_table(pa.BufferReader(data), partitioning=None).to_pylist()  # type: ignore[no-any-return]
