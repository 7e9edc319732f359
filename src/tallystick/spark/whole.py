"""Is a checkpoint whole? Asked before a job starts on it, so that a part that is missing is an error with a name.

A silent start from nothing would deliver everything again. What is looked for:

1.  *The journal without Spark's logs.* A decision about epoch N was made after Spark had written ``offsets/N``. If the
    log ends before N, somebody deleted or rewound it; Spark would begin at its end, or at 0, and do epochs again.
2.  *Spark's logs without the journal.* A plain Spark checkpoint may be taken over, so a missing journal alone proves
    nothing. Therefore each checkpoint of ours has a mark outside the journal's folder, with the same job and id.
3.  *The file source's own log.* Spark's offset for it is a number of an entry there. Without the entry Spark takes
    every file for new.
"""

from __future__ import annotations

import json
import re

from tallystick.errors import CheckpointError, ForeignCheckpointError
from tallystick.journal import JobIdentity, Journal, horizon
from tallystick.journal.codec import decode, encode
from tallystick.journal.store import Store
from tallystick.spark.offsets import newest_epoch, parse_offsets

MARK = "tallystick.json"
_WAY_OUT = "nothing was written. restore the whole folder from one copy, or start with a new checkpoint"


def check_whole(journal: Journal, logs: Store) -> None:
    """Driver, before anything is written. ``logs`` is the checkpoint itself."""
    _check_mark(journal.identity(), logs)
    begun = newest_epoch(logs, "offsets")
    known = max([horizon(journal), *(record.attempt.epoch for record in journal.records())])
    if known > begun:
        ends = f"ends at epoch {begun}" if begun >= 0 else "is empty"
        raise CheckpointError(
            f"the checkpoint is not whole: its journal knows of epoch {known}, but {logs.locate('offsets')} {ends}. "
            f"{_WAY_OUT}"
        )
    if begun >= 0:
        _check_file_sources(logs, begun)


def mark(owner: JobIdentity, logs: Store) -> None:
    """Say outside the journal that there is one. May be repeated."""
    logs.put_if_absent(MARK, encode("mark", {"job": owner.job, "id": owner.id}))


def _check_mark(owner: JobIdentity | None, logs: Store) -> None:
    data = logs.read(MARK)
    if data is None:
        return
    body = decode("mark", data, logs.locate(MARK))
    if owner is None:
        raise CheckpointError(
            f"the checkpoint is not whole: {logs.locate(MARK)} says that it belongs to the job {body['job']!r}, but "
            f"its journal, the folder {logs.locate('tallystick')}, is gone. without it nobody knows what was decided. "
            f"{_WAY_OUT}"
        )
    if owner.id != body["id"]:
        raise ForeignCheckpointError(
            f"{logs.locate('tallystick')} is the journal of another checkpoint: it says {owner.job!r} ({owner.id}), "
            f"{logs.locate(MARK)} says {body['job']!r} ({body['id']}). {_WAY_OUT}"
        )


def _check_file_sources(logs: Store, epoch: int) -> None:
    data = logs.read(f"offsets/{epoch}")
    if data is None:
        return  # removed since it was listed: Spark will say so
    where = logs.locate(f"offsets/{epoch}")
    for number, offset in enumerate(parse_offsets(data.decode(errors="replace"), where).offsets):
        needed = offset.get("logOffset") if isinstance(offset, dict) else None
        if not isinstance(needed, int) or needed < 0:
            continue
        found = max((_entry(name) for name in _names(logs, number)), default=-1)
        if found < needed:
            raise CheckpointError(
                f"the checkpoint is not whole: epoch {epoch} has read up to entry {needed} of its file source, but "
                f"{logs.locate('sources')}/{number} ends at {found}. Spark would read every file again. {_WAY_OUT}"
            )


def _names(logs: Store, source: int) -> list[str]:
    return logs.list(f"sources/{source}")


def _entry(name: str) -> int:
    match = re.fullmatch(r"(\d+)(?:\.compact)?", name)
    return int(match[1]) if match is not None else -1


_STATE_SCHEMA = re.compile(r"\[?STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_\w*SCHEMA\w*")
_STATE_GONE = re.compile(r"CANNOT_LOAD_STATE_STORE|does not exist|FAILED_TO_READ_\w+|SNAPSHOT_\w+_NOT_FOUND")
_LOG_TORN = re.compile(r"Incomplete log file|[Ll]og file was malformed|UnsupportedLogVersion|MALFORMED_LOG_FILE")


def trouble(text: str) -> str | None:
    """What an error of Spark's says about its own part of the checkpoint; None if it is about something else."""
    first = " ".join(text.strip().splitlines()[0].split()) if text.strip() else ""
    if _STATE_SCHEMA.search(text):
        return (
            "the state in the checkpoint has another schema than these steps need: the steps were changed. run the "
            f"steps that wrote it, or start with a new checkpoint ({_stated(text) or first})"
        )
    if "MISSING_STATE_DIRECTORY" in text or ("STATE_STORE" in text and _STATE_GONE.search(text)):
        return (
            f"the state in the checkpoint is not whole: {_stated(text) or first}. restore the checkpoint from one "
            "copy, or start with a new one"
        )
    if _LOG_TORN.search(text):
        return f"a log of Spark in the checkpoint is torn: {first}. restore the checkpoint from one copy"
    return None


def _stated(text: str) -> str | None:
    """The line of Spark's that names the condition and what it found."""
    match = re.search(r"\[(?P<name>[A-Z_.]*STATE_[A-Z_.]*)\]\s*(?P<words>[^\n]+)", text)
    return json.dumps(match["words"].strip())[1:-1] if match is not None else None
