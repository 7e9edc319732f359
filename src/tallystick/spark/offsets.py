"""What an epoch reads: Spark's offset log, which is written before the epoch runs and never changes for it.

The digest is over the sources' offsets alone. It ties a decision to what was read, so that a rewound or replaced
checkpoint is noticed instead of its epochs being taken for finished ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.errors import CheckpointError
from tallystick.journal.stores import open_store
from tallystick.records import Json, SourceOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.journal.store import Store

_URI = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(.*)", re.DOTALL)


def local_path(location: str) -> Path | None:
    """The path of a local location, given plain or as a ``file:`` URI; None for any other scheme.

    As with Spark and the journal's store, nothing in a URI is percent-decoded.
    """
    scheme, rest = _URI.fullmatch(location).groups()  # type: ignore[union-attr] # it matches every text
    if scheme is not None and scheme.lower() != "file":
        return None
    return Path(rest if scheme is None else re.sub(r"^//(?=/)", "", rest))


def read_offsets(spark: SparkSession, checkpoint: str, epoch: int) -> SourceOffsets:
    """Driver, inside the epoch: the offsets that this epoch reads up to, per source."""
    local = local_path(checkpoint)
    if local is None:
        text = _read_through_hadoop(spark, checkpoint, epoch)
    else:
        text = _read_local(local / "offsets" / str(epoch))
    return parse_offsets(text, f"{checkpoint}/offsets/{epoch}")


def parse_offsets(text: str, where: str) -> SourceOffsets:
    """Spark's format: a version line, a line of metadata, then a JSON offset per source (``-`` for none)."""
    version, *lines = text.rstrip("\n").split("\n")
    if not re.fullmatch(r"v[0-9]+", version) or not lines:
        raise CheckpointError(
            f"{where} is no offset log of Spark: it begins with {version[:80]!r} and has {len(lines)} more lines, "
            "needed 'v1', a line of metadata, and a line per source. restore it from a copy of the checkpoint"
        )
    offsets = lines[1:]
    digest = hashlib.sha256("\n".join(offsets).encode()).hexdigest()[:32]
    return SourceOffsets(digest, tuple(_offset(line) for line in offsets))


def source_log(checkpoint: str, place: int, spark: SparkSession | None) -> list[str]:
    """The lines of the log that Spark keeps for one source alone; ``place`` is that of its line in the offset log.

    A compacted entry holds everything before it.
    """
    logs = open_store(f"{checkpoint}/sources", spark)
    entries = [name for name in logs.list(str(place)) if name.partition(".")[0].isdigit()]
    entries.sort(key=lambda name: int(name.partition(".")[0]))
    compacted = [number for number, name in enumerate(entries) if name.endswith(".compact")]
    lines: list[str] = []
    for name in entries[compacted[-1] if compacted else 0 :]:
        lines += (logs.read(f"{place}/{name}") or b"").decode(errors="replace").splitlines()
    return lines


def newest_epoch(logs: Store, log: str) -> int:
    """The newest epoch of Spark's ``offsets`` or ``commits``, -1 if there is none. ``logs`` is the checkpoint."""
    return max((int(name) for name in logs.list(log) if name.isdigit()), default=-1)


def _offset(line: str) -> Json:
    if line == "-":
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line  # a source may log an offset that is no JSON; it is shown as it is


def _read_local(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as cause:
        raise CheckpointError(
            f"{path} cannot be read ({cause.strerror}): the checkpoint was moved or deleted while the job runs"
        ) from cause
    except ValueError as cause:
        raise CheckpointError(f"{path} is no offset log of Spark: it is no text ({cause})") from cause


def _read_through_hadoop(spark: SparkSession, checkpoint: str, epoch: int) -> str:
    read = open_store(checkpoint, spark).read(f"offsets/{epoch}")
    if read is None:
        raise CheckpointError(f"{checkpoint}/offsets/{epoch} is gone: the checkpoint was moved or deleted")
    return read.decode()
