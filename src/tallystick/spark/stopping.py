"""Stop a query between two epochs: not in the middle of one, and not later than it has to be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

EPOCH_PATIENCE_S = 60.0
POLL_S = 0.02


def stop_after_epoch(query: StreamingQuery) -> None:
    """Driver, from any thread but the query's own."""
    wait_for_epoch(query)
    query.stop()


def wait_for_epoch(query: StreamingQuery) -> None:
    """Until the query is idle or its epoch is over, whichever is seen first; a stuck epoch is not waited for."""
    before = _last_epoch(query)
    deadline = time.monotonic() + EPOCH_PATIENCE_S
    while time.monotonic() < deadline and query.isActive:
        if not query.status["isTriggerActive"] or _last_epoch(query) != before:
            return
        time.sleep(POLL_S)


def _last_epoch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else progress["batchId"]
