"""Driver: commits asked for, several at once, and what it means if the server does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.sinks.postgresql import ending, stage
from tallystick.sinks.postgresql.client import psycopg
from tallystick.sinks.postgresql.failures import outcome_of, words
from tallystick.sinks.postgresql.names import Name
from tallystick.sinks.postgresql.transaction import PREPARED

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

log = logging.getLogger("tallystick.postgresql")

PATIENCE_S = 30.0
COMMITS_AT_ONCE = 8


def commit_all(sink: PostgreSQL, committables: Sequence[Json]) -> list[Outcome]:
    """Side by side where rows are appended; where the last row of a key counts, in the order of the slices."""
    names = [ending.name_of(one) for one in committables]
    if sink.mode != "append":
        return _commit_in_order(sink, names)
    ways = [_commit_prepared if one["way"] == PREPARED else _commit_stage for one in committables]
    with ThreadPoolExecutor(min(COMMITS_AT_ONCE, max(1, len(names)))) as threads:
        return list(threads.map(lambda way, name: way(sink, name), ways, names))


def tell(sink: PostgreSQL, step: Callable[[Any], Any]) -> Any:
    """One step on a connection; `SinkError` with the server's words if it fails."""
    try:
        with sink.pool(PATIENCE_S).use() as connection:
            return step(connection)
    except psycopg().Error as cause:
        raise SinkError(f"postgresql: {sink.server}: {words(cause, sink.parameters)}") from cause


def _commit_prepared(sink: PostgreSQL, name: Name) -> Outcome:
    return _asked(sink, [name], lambda connection: [ending.commit_prepared(connection, sink, name)])[0]


def _commit_stage(sink: PostgreSQL, name: Name) -> Outcome:
    return _commit_stages(sink, [name])[0]


def _commit_in_order(sink: PostgreSQL, names: Sequence[Name]) -> list[Outcome]:
    """No slice is applied before an earlier one that still waits."""
    outcomes: list[Outcome] = []
    for first in range(0, len(names), stage.AT_ONCE):
        if any(outcome.unsettled or outcome is Outcome.REFUSED for outcome in outcomes):
            return outcomes + [Outcome.RETRY_LATER] * (len(names) - first)
        outcomes += _commit_stages(sink, names[first : first + stage.AT_ONCE])
    return outcomes


def _commit_stages(sink: PostgreSQL, names: Sequence[Name]) -> list[Outcome]:
    return _asked(sink, names, lambda connection: stage.commit_stages(connection, sink, names))


def _asked(sink: PostgreSQL, names: Sequence[Name], ask: Callable[[Any], list[Outcome]]) -> list[Outcome]:
    """The server's answers; if there were none, what that means for all of them."""
    try:
        connection = sink.pool(PATIENCE_S).take()
    except psycopg().Error as error:
        log.warning("%s cannot be reached, asking again later: %s", sink.server, words(error, sink.parameters))
        return [Outcome.RETRY_LATER] * len(names)
    try:
        answers = ask(connection)
    except psycopg().Error as error:
        connection.close()
        outcome = ending.doubled(error, sink) or outcome_of(error)
        level = logging.ERROR if outcome is Outcome.REFUSED else logging.WARNING
        said = words(error, sink.parameters)
        log.log(level, "%s (first of %d) at %s: %s: %s", names[0], len(names), sink.target, outcome.value, said)
        return [outcome] * len(names)
    sink.pool(PATIENCE_S).give(connection)
    return answers
