"""Files that an epoch has in its log and that are gone: Spark would pass over them without a word.

Spark's file source logs the files of an epoch before it reads them (``sources/N`` in the checkpoint). When it then
makes a plan of them it lists each, and leaves out what is not there, whatever ``ignoreMissingFiles`` says: that option
is looked at only when a listed file is opened. So they are looked for once more, after Spark has listed them and before
a row is written: a file that is there now was there then, unless it came back in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tallystick.errors import CheckpointError
from tallystick.journal.stores import open_store
from tallystick.records import Json, SourceOffsets
from tallystick.spark.offsets import read_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.journal.store import Store

_SESSION_IGNORES = "spark.sql.files.ignoreMissingFiles"


def missing_files(spark: SparkSession, checkpoint: str, epoch: int, read: SourceOffsets) -> list[str]:
    """Driver, inside the epoch: the files that it is to read and that are not there. Asks for nothing without files."""
    ends = [_end(offset) for offset in read.offsets]
    if not any(end is not None for end in ends) or spark.conf.get(_SESSION_IGNORES) == "true":
        return []
    before = read_offsets(spark, checkpoint, epoch - 1).offsets if epoch > 0 else ()
    starts = [_end(offset) for offset in before] if len(before) == len(ends) else [None] * len(ends)
    logs = open_store(f"{checkpoint}/sources", spark)
    gone = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end is not None:
            named = _logged(logs, str(number), -1 if start is None else start, end)
            gone += [name for name in named if not _is_there(spark, name)]
    return gone


def _end(offset: Json) -> int | None:
    """The offset of Spark's file source: up to which entry of its own log it reads."""
    is_log = isinstance(offset, dict) and list(offset) == ["logOffset"]
    return int(offset["logOffset"]) if is_log else None


def _logged(logs: Store, folder: str, start: int, end: int) -> Iterator[str]:
    """The files of the entries after ``start`` up to ``end``. Every tenth entry holds all those before it, too."""
    names = set(logs.list(folder))
    if not names:
        return  # no log of this kind: an offset of another source that only looks the same
    for entry in range(start + 1, end + 1):
        name = next((name for name in (str(entry), f"{entry}.compact") if name in names), None)
        if name is None:
            later = [int(one.removesuffix(".compact")) for one in names if one.endswith(".compact")]
            name = f"{min((one for one in later if one > entry), default=entry)}.compact"
        data = logs.read(f"{folder}/{name}")
        if data is None:
            raise CheckpointError(
                f"{logs.locate(folder)} has no entry {entry}, so nobody knows which files the epoch reads: restore it "
                "from a copy of the checkpoint"
            )
        for line in data.decode().splitlines()[1:]:
            file = json.loads(line)
            if file["batchId"] == entry:
                yield file["path"]


def _is_there(spark: SparkSession, name: str) -> bool:
    parts = urlsplit(name)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path)).exists()
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(session._jvm.java.net.URI(name))
    there: bool = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).exists(path)
    return there
