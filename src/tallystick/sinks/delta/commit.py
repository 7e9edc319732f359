"""The commit of an epoch to a Delta table: move files into place, then add all of them to the log in one commit.

1.  Readers of Delta see what the log names. Files that are in place but not in the log are seen by nobody, and the
    commit that names them is one atomic create of a log file: the slices of an epoch appear together.
2.  The same commit carries the tokens of all slices (`token.py`). Whoever asks again finds them, also when the files
    have been compacted or vacuumed since.
3.  Tokens are read and the commit is tried on the same version of the table. If another process commits the same
    slices in between, Delta finds that their application ids have moved and refuses; then the tokens are read again.
4.  deltalake does not sync what it writes to a disk, so the log is synced here before a commit is confirmed; also one
    that was found in the table, because the process that made it may have died before that.
5.  Files that were put into place and are gone before they were added (vacuumed): expired, written again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.records import Json, Outcome
from tallystick.sinks.delta.library import first_line, library, make_durable, newest
from tallystick.sinks.delta.token import Standing, Token
from tallystick.sinks.files.folder import FolderSink
from tallystick.sinks.files.publish import publish_all

TRIES = 10

logger = logging.getLogger("tallystick.sinks.delta")


def commit_epoch(sink: FolderSink[Path], committables: Sequence[Json]) -> list[Outcome]:
    """One commit for all of them that are not in the table yet."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    for _ in range(TRIES):
        try:
            return _try(sink, committables)
        except CommitFailedError as error:  # essay 3
            logger.info("another commit to %s came first, looking again: %s", sink.path, first_line(error))
        except (DeltaError, OSError) as error:
            logger.warning("%s cannot be committed to now, asking again later: %s", sink.path, first_line(error))
            break
    return [Outcome.RETRY_LATER] * len(committables)


def _try(sink: FolderSink[Path], committables: Sequence[Json]) -> list[Outcome]:
    path = sink.path
    table = newest(str(path))
    if table is None:
        logger.warning("there is no Delta table in %s now: is it mounted? asking again later", path)
        return [Outcome.RETRY_LATER] * len(committables)
    outcomes = [_standing(path, table, committable) for committable in committables]
    new = [number for number, outcome in enumerate(outcomes) if outcome is Outcome.COMMITTED]
    moved = publish_all(path, sink.staging, [committables[number] for number in new])
    for number, outcome in zip(new, moved, strict=True):
        outcomes[number] = _in_place(path, committables[number]) if outcome.confirmed else outcome
    added = [committables[number] for number in new if outcomes[number] is Outcome.COMMITTED]
    _add(table, [one for one in added if one["files"]], sink.settings.partition_by)
    make_durable(str(path))
    return outcomes


def _standing(path: Path, table: Any, committable: Json) -> Outcome:
    """COMMITTED: it has to be, by us."""
    token = Token.from_json(committable["token"])
    standing = token.against(table.transaction_version)
    if standing is Standing.AHEAD:
        logger.error(
            "%s is ahead of epoch %d: it has %s, and here is %s. the checkpoint was rewound, or another driver has "
            "gone on. nothing was written. restore the checkpoint that belongs to this table, or use a new one",
            path,
            token.epoch,
            {app_id: table.transaction_version(app_id) for app_id in token.actions},
            token.actions,
        )
        return Outcome.REFUSED
    return Outcome.ALREADY_COMMITTED if standing is Standing.SAME else Outcome.COMMITTED


def _in_place(path: Path, committable: Json) -> Outcome:
    gone = [final for _, final in committable["files"] if not (path / final).exists()]
    return Outcome.EXPIRED if gone else Outcome.COMMITTED


def _add(table: Any, committables: Sequence[Json], partition_by: Sequence[str]) -> None:
    from deltalake.transaction import AddAction

    if not committables:
        return
    delta = library()
    now_ms = int(time.time() * 1000)
    tokens = [Token.from_json(committable["token"]).actions for committable in committables]
    transactions = [delta.Transaction(app_id, version) for token in tokens for app_id, version in token.items()]
    files = [
        (final, size, rows, dict(zip(partition_by, values, strict=True)))
        for committable in committables
        for (_, final), (size, rows, values) in zip(committable["files"], committable["adds"], strict=True)
    ]
    table.create_write_transaction(
        [
            AddAction(final, size, values, now_ms, True, json.dumps({"numRecords": rows}))
            for final, size, rows, values in files
        ],
        "append",
        table.schema(),
        list(partition_by),
        commit_properties=delta.CommitProperties(app_transactions=transactions),
    )
