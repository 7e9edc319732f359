"""One slice as bulk requests: what is sent, and what each answer means.

Every document has an external version, the stamp of its row (`sinks/stamps.py`): the server keeps the higher one, and
an equal one is written again. So an answer of 409 says that a newer row stands there, which is what was wanted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tallystick.errors import SinkError
from tallystick.records import Json
from tallystick.sinks.opensearch.client import PASSING, Connection, reason

TRIES = 6
PAUSE_S = 0.2
SUPERSEDED = 409
_INDEX_ERRORS = ("cluster_block_exception", "index_closed_exception", "index_not_found_exception")
_ANSWERS = {"filter_path": "errors,items.*.status,items.*.error"}


@dataclass(frozen=True)
class Entry:
    """One document on its way: which row of the slice it is, under which id and version it goes, and itself as JSON."""

    ordinal: int
    id: str
    version: int
    document: str

    def lines(self) -> str:
        head = f'{{"index":{{"_id":{json.dumps(self.id)},"version":{self.version},"version_type":"external_gte"}}}}'
        return f"{head}\n{self.document}\n"


@dataclass(frozen=True)
class Rejected:
    """A document that the server refuses, and its words."""

    entry: Entry
    why: str


def write(connection: Connection, index: str, entries: Iterable[Entry], bulk_bytes: int) -> Iterator[Rejected]:
    """Write them all; gives back those that are refused. `OSError` if the server does not take the rest in time."""
    for chunk in _chunks(entries, bulk_bytes):
        yield from _write_chunk(connection, index, chunk)


def _chunks(entries: Iterable[Entry], bulk_bytes: int) -> Iterator[list[Entry]]:
    """About so many bytes in one request, and one document at least."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        length = len(entry.document) + 100
        if chunk and size + length > bulk_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += length
    if chunk:
        yield chunk


def _write_chunk(connection: Connection, index: str, chunk: Sequence[Entry]) -> Iterator[Rejected]:
    said = ""
    for attempt in range(TRIES):
        answers = _send(connection, index, chunk)
        again: list[Entry] = []
        for entry, answer in zip(chunk, answers, strict=True):
            status, error = answer["status"], answer.get("error")
            if status in PASSING or _is_about_the_index(status, error):
                again.append(entry)
                said = reason(error)
            elif status >= 300 and status != SUPERSEDED:
                yield Rejected(entry, reason(error))
        if not again:
            return
        chunk = again
        time.sleep(PAUSE_S * 2**attempt)
    raise ConnectionError(f"opensearch: {len(chunk)} documents are not taken after {TRIES} tries: {said}")


def _is_about_the_index(status: int, error: Json) -> bool:
    """Blocked, closed, gone, or not allowed: no row is to blame, and each of them passes when somebody mends it."""
    return status in (401, 403, 404) or (error or {}).get("type") in _INDEX_ERRORS


def _send(connection: Connection, index: str, chunk: Sequence[Entry]) -> Sequence[Json]:
    body = "".join(entry.lines() for entry in chunk).encode()
    answer = connection.ask("POST", f"/{index}/_bulk", body, params=_ANSWERS)
    if not answer.get("errors"):
        return [{"status": 200}] * len(chunk)
    answers = [next(iter(item.values())) for item in answer["items"]]
    if len(answers) != len(chunk):
        raise SinkError(f"opensearch: {len(answers)} answers came for {len(chunk)} documents: is a proxy in between?")
    return answers
