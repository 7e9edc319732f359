"""The OpenSearch sink: documents with ids and versions that are the same whenever they are written.

1.  *The id is the row's own* (``id=``): a row replaces the document of that id. Or, without one, rows are appended
    under ids made of job, epoch, slice and place in the slice: written again, each is the same document.
2.  *The version is the row's stamp* (`sinks/stamps.py`). The server keeps the higher version, so what comes late from a
    driver that was taken for dead changes nothing.
3.  *Refused rows* are told before the decision where that can be known: at the start from the mapping, before the
    decision from the row. What only the server can find goes to the dead-letter index if there is one, else it stops
    the job, with the id and the words of the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.config import duration_s
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import IdempotentSink, JobContext, SliceContext
from tallystick.sinks.letters import documents, need, shortened
from tallystick.sinks.opensearch.bulk import Entry, Rejected, write
from tallystick.sinks.opensearch.client import Connection
from tallystick.sinks.opensearch.preflight import preflight
from tallystick.sinks.opensearch.shape import shaped
from tallystick.sinks.refusals import Refusal, screened, where
from tallystick.sinks.stamps import WINDOW_ROWS, stamp_us, windows
from tallystick.sinks.tls import Tls, tls_of

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

ID_BYTES_MAX = 512
DOCUMENT_BYTES_MAX = 50 << 20
BULK_BYTES_MAX = 20 << 20
"""Servers take 100 MB in one request unless they are told otherwise. Letters are counted, and may have four bytes."""


@dataclass(frozen=True, repr=False)
class OpenSearch(IdempotentSink):
    """Index rows as documents: by an id of their own, or appended.

    hosts             URLs such as "http://localhost:9200", with commas or as a list
    index             the index, or an alias with one index to write to
    id                the column that is the document's id, or several. None: rows are appended
    create            make the index if it is missing, with fields for the columns of the rows
    dead_letter       an index for rows that the server refuses, each with the reason; made if it is missing. None: a
                      refused row stops the job
    username          for servers that ask for a password
    password          never shown
    tls               ts.sinks.Tls(ca_file=…), or True, for https
    bulk_bytes        about how many bytes go in one request
    request_timeout   how long one request may take, such as "30s"
    """

    facts = SinkFacts(
        "opensearch",
        Kind.IDEMPOTENT,
        Mode.EXACTLY_ONCE,
        "bulk requests with deterministic ids and external versions from the epoch, applied after the decision",
        "index.translog.durability is request (the default) or there are replicas; no data streams; a checkpoint that "
        "all workers share",
    )
    on_executors = True

    hosts: str | Iterable[str]
    index: str
    id: str | Sequence[str] | None = None
    create: bool = True
    dead_letter: str | None = None
    username: str | None = None
    password: str | None = None
    tls: Tls | bool | None = None
    bulk_bytes: int = 5 << 20
    request_timeout: str = "30s"
    connection: Connection = field(init=False, compare=False)
    schema: Any = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        for setting, name in (("index", self.index), ("dead_letter", self.dead_letter)):
            if name is not None and not _is_index(name):
                raise ConfigError(
                    f"opensearch: {setting} is {name!r}, needed a name in lower case, without spaces, and without any "
                    'of \\ / * ? " < > | , # : and not beginning with - _ +'
                )
        if self.dead_letter == self.index:
            raise ConfigError(f"opensearch: {self.index} cannot be its own dead-letter index: name another one")
        whole = isinstance(self.bulk_bytes, int) and not isinstance(self.bulk_bytes, bool)
        if not whole or not 0 < self.bulk_bytes <= BULK_BYTES_MAX:
            raise ConfigError(f"opensearch: bulk_bytes is {self.bulk_bytes!r}, needed 1 to {BULK_BYTES_MAX}")
        if (self.username is None) != (self.password is None):
            raise ConfigError("opensearch: username and password go together: found only one of them")
        if self.id is not None and not self.id_columns:
            raise ConfigError("opensearch: id needs a column, or None to append")
        timeout_s = duration_s(self.request_timeout)
        connection = Connection.of(self.hosts, self.username, self.password, tls_of(self.tls), timeout_s)
        object.__setattr__(self, "connection", connection)

    @property
    def id_columns(self) -> tuple[str, ...]:
        if self.id is None:
            return ()
        return (self.id,) if isinstance(self.id, str) else tuple(self.id)

    @property
    def target(self) -> str:
        return f"{self.facts.name}:{','.join(self.connection.urls)}/{self.index}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.connection!r}, index={self.index!r}, id={self.id!r})"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        object.__setattr__(self, "schema", schema)
        return shaped(schema, column, self.id_columns)

    def check(self, job: JobContext) -> None:
        if job.schema is not None:
            object.__setattr__(self, "schema", job.schema)
        try:
            preflight(self)
        except OSError as error:
            raise SinkError(f"{error}. start it, or correct hosts=. look with: tallystick servers status") from error

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        need(self.target, "id", self.id_columns)
        ids = [json.dumps([str(one[name]) for name in self.id_columns]) for one in rows.to_pylist()]
        if len(self.id_columns) == 1:
            ids = list(map(str, rows.column(self.id_columns[0]).to_pylist()))
        none = pa.array([False] * rows.num_rows, pa.bool_())
        return pa.record_batch({"id": pa.array(ids, pa.string()), "document": documents(rows), "not_finite": none})

    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> Sequence[Refusal]:
        return screened(context, self._refused(rows), lambda found: self._error(rows, found))

    def _refused(self, rows: pa.RecordBatch) -> Iterator[Refusal]:
        ids, not_finite = rows.column("id"), rows.column("not_finite")
        if self.id is not None:
            yield from where(ids.is_null(), "its id is null")
            yield from where(pc.equal(pc.binary_length(ids), 0), "its id is empty")
            too_long = pc.greater(pc.binary_length(ids), ID_BYTES_MAX)
            yield from where(too_long, f"its id has over {ID_BYTES_MAX} bytes")
        yield from where(not_finite, "it has a number that JSON cannot hold: NaN, or infinite")
        too_large = pc.greater(pc.binary_length(rows.column("document")), DOCUMENT_BYTES_MAX)
        yield from where(too_large, f"it has over {DOCUMENT_BYTES_MAX} bytes")

    def _error(self, rows: pa.RecordBatch, found: Refusal) -> RowRefusedError:
        id_, document = (rows.column(name)[found.place].as_py() for name in ("id", "document"))
        row = f"with the id {str(id_)[:80]!r}" if id_ else (document or "")[:200]
        return RowRefusedError(
            f"{self.target} cannot hold the row {row}: {found.why}. filter such rows out, or correct them"
        )

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        for number, window in enumerate(windows(batches)):
            refused = write(self.connection, self.index, self._entries(context, number, window), self.bulk_bytes)
            if self.dead_letter is None:
                for one in refused:
                    raise SinkError(f"the document {one.entry.id!r}: {one.why}")
            else:
                self._bury(context, list(refused))

    def _entries(self, context: SliceContext, number: int, window: pa.RecordBatch) -> Iterable[Entry]:
        """One document for each id of a window: the last."""
        version, first = stamp_us(context, number), number * WINDOW_ROWS
        documents = window.column("document").to_pylist()
        if self.id is None:
            ids: Iterable[str] = (_place(context, first + row) for row in range(window.num_rows))
        else:
            ids = window.column("id").to_pylist()
        made = (
            Entry(first + row, id_, version, document)
            for row, (id_, document) in enumerate(zip(ids, documents, strict=True))
        )
        return made if self.id is None else {entry.id: entry for entry in made}.values()

    def _bury(self, context: SliceContext, refused: Sequence[Rejected]) -> None:
        """Refused rows, each with the reason, under ids that are the same when this is done again."""
        if self.dead_letter is None or not refused:
            return
        entries = (
            Entry(one.entry.ordinal, _place(context, one.entry.ordinal), one.entry.version, _letter(context, one))
            for one in refused
        )
        for one in write(self.connection, self.dead_letter, entries, self.bulk_bytes):
            raise SinkError(f"the dead-letter index {self.dead_letter} refuses {one.entry.id!r}: {one.why}")


class Elasticsearch(OpenSearch):
    """The same for Elasticsearch, which has the same bulk interface. The settings are those of `OpenSearch`.

    Every test of this package runs against OpenSearch. What is used is what both have had since Elasticsearch 7: bulk
    requests with ``index``, external versions, mappings; no client that asks for the product's name.
    """

    facts = SinkFacts(
        "elasticsearch",
        Kind.IDEMPOTENT,
        Mode.EXACTLY_ONCE,
        OpenSearch.facts.mechanism,
        f"{OpenSearch.facts.conditions}; tested with OpenSearch only",
    )


def _place(context: SliceContext, ordinal: int) -> str:
    return f"{context.job_id}-{context.sink}-{context.attempt.epoch}-{context.slice}-{ordinal}"


def _letter(context: SliceContext, one: Rejected) -> str:
    return json.dumps(
        {
            "id": _place(context, one.entry.ordinal),
            "job": context.job_id,
            "sink": context.sink,
            "epoch": context.attempt.epoch,
            "slice": context.slice,
            "reason": shortened(one.why),
            "row": json.dumps({"id": one.entry.id, "document": one.entry.document}, ensure_ascii=False),
        }
    )


def _is_index(name: object) -> bool:
    if not isinstance(name, str) or not name or name in (".", "..") or name[0] in "-_+":
        return False
    return name == name.lower() and not any(letter in name for letter in '\\/*?"<>| ,#:') and len(name.encode()) <= 255
