"""Let go of a checkpoint when its query ends, so that the next start of this process can have it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.journal.store import Store
from tallystick.spark.leading import Leadership

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tallystick")

UNLOCK_TIMEOUT_S = 30.0

_ending: dict[str, tuple[StreamingQuery, threading.Thread]] = {}
"""By checkpoint: the last query of this process, and who lets go of the checkpoint when it ends."""


def unlock_when_ended(
    location: str, query: StreamingQuery, store: Store, tidy: Callable[[], None], leadership: Leadership | None
) -> None:
    """Let go of the checkpoint as soon as the query ends, however it ends, so that the next start can have it.

    One that ended well is tidied up after; one that failed is soon started again, and that does it.
    """

    def wait() -> None:
        try:
            query.awaitTermination()
            tidy()
        except (PySparkException, Py4JError, OSError) as ending:
            log.debug("the query ended with %s", type(ending).__name__)
        finally:
            if leadership is not None:
                leadership.release()
            store.unlock()

    thread = threading.Thread(target=wait, name=f"tallystick-{query.runId}", daemon=True)
    _ending[location] = (query, thread)
    thread.start()


def wait_for_unlock(location: str) -> None:
    """A query of ours that has ended is about to let go: whoever waited for its end may be quicker than that."""
    if location in _ending:
        query, thread = _ending[location]
        if not query.isActive:
            thread.join(UNLOCK_TIMEOUT_S)
