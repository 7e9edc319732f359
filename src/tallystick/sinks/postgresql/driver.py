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
    """Prepared ones side by side, staged ones together in one transaction."""
    named = [(ending.name_of(one), one["way"]) for one in committables]
    outcomes: dict[Name, Outcome] = {}
    prepared = [name for name, way in named if way == PREPARED]
    if prepared:
        with ThreadPoolExecutor(min(COMMITS_AT_ONCE, len(prepared))) as threads:
            ended = threads.map(lambda name: _commit_prepared(sink, name), prepared)
            outcomes.update(zip(prepared, ended, strict=True))
    staged = [name for name, way in named if way != PREPARED]
    for first in range(0, len(staged), stage.AT_ONCE):
        some = staged[first : first + stage.AT_ONCE]
        outcomes.update(zip(some, _commit_staged(sink, some), strict=True))
    return [outcomes[name] for name, _ in named]


def tell(sink: PostgreSQL, step: Callable[[Any], Any]) -> Any:
    """One step on a connection; `SinkError` with the server's words if it fails."""
    try:
        with sink.pool(PATIENCE_S).use() as connection:
            return step(connection)
    except psycopg().Error as cause:
        raise SinkError(f"postgresql: {sink.server}: {words(cause, sink.parameters)}") from cause


def _commit_prepared(sink: PostgreSQL, name: Name) -> Outcome:
    return _asked(sink, [name], lambda connection: [ending.commit_prepared(connection, sink, name)])[0]


def _commit_staged(sink: PostgreSQL, names: Sequence[Name]) -> list[Outcome]:
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
