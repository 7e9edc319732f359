"""Rows as lines over TCP, framed by marks that say which slice of which epoch they are.

One connection per slice, made by the driver after the decision, slice by slice::

    #tallystick begin JOB EPOCH GENERATION SLICE
    {"id": 1, …}
    {"id": 2, …}
    #tallystick end JOB EPOCH GENERATION SLICE ROWS

The receiver answers with the last line, when it has the rows for good. Without that answer nobody knows what became
of them (what TCP has taken may still be lost), so the slice is sent again: the receiver may see a slice more than once,
and one that broke off in the middle. By the marks it can drop both.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.config import duration_s
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import JobContext, PlainSink, SliceContext
from tallystick.sinks.letters import documents
from tallystick.sinks.refusals import Refusal, screened, where
from tallystick.sinks.tls import Tls, tls_of

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

MARK = "#tallystick "


@dataclass(frozen=True)
class Socket(PlainSink):
    """Send rows as lines to a receiver that answers for each slice.

    host      where the receiver listens
    port      on which port
    format    "json", an object per line, or "text", which takes one string column without line breaks
    timeout   how long the receiver may take to connect, to read and to answer, such as "10s"
    tls       ts.sinks.Tls(ca_file=…), or True
    """

    facts = SinkFacts(
        "socket",
        Kind.PLAIN,
        Mode.AT_LEAST_ONCE,
        "lines framed by epoch marks, sent after the decision, again until the receiver has answered",
        "the receiver answers each end mark when it has the rows",
    )

    host: str
    port: int
    format: str = "json"
    timeout: str = "10s"
    tls: Tls | bool | None = None
    timeout_s: float = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host or any(letter in self.host for letter in "/@ "):
            raise ConfigError(f"socket: host needs a name or an address, found {self.host!r}")
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise ConfigError(f"socket: port needs a number between 1 and 65535, found {self.port!r}")
        if self.format not in ("json", "text"):
            raise ConfigError(f"socket: unknown format {self.format!r}: needed json or text")
        object.__setattr__(self, "timeout_s", duration_s(self.timeout))
        tls_of(self.tls)

    @property
    def target(self) -> str:
        return f"socket:{self.host}:{self.port}"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType

        names = schema.fieldNames()
        if self.format == "json":
            row = f.struct(*(column(name).alias(name) for name in names))
            return [f.to_json(row, {"ignoreNullFields": "false"}).alias("value")]
        if len(names) != 1 or not isinstance(schema.fields[0].dataType, StringType):
            raise ConfigError(
                f"socket: format 'text' takes one string column, found {schema.simpleString()}: select one, or use "
                "format='json'"
            )
        return [column(names[0]).alias("value")]

    def check(self, job: JobContext) -> None:
        """Whether somebody listens; the connection is closed again without a word."""
        try:
            self._connected().close()
        except OSError as error:
            raise SinkError(f"{error}. start the receiver, or correct host= and port=") from error

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.format != "json":
            raise ConfigError(f"{self.target} cannot be the sink for dead letters in format 'text': use format='json'")
        return pa.record_batch({"value": documents(rows)})

    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> Sequence[Refusal]:
        lines = rows.column("value")
        return screened(context, _refused(lines), lambda found: self._error(lines[found.place].as_py(), found.why))

    def _error(self, line: str | None, why: str) -> RowRefusedError:
        return RowRefusedError(f"{self.target} cannot take the row {str(line)[:200]!r}: {why}. use format='json'")

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        with self._connected() as connection, connection.makefile("rb") as answers:
            end = ""
            for text in _frames(context, batches):
                connection.sendall(text.encode())
                end = text.rstrip("\n")
            answer = answers.readline().decode(errors="replace").rstrip("\r\n")
        if answer != end:
            found = f"answered {answer[:200]!r}" if answer else "closed the connection without an answer"
            raise ConnectionError(f"{self.target} {found}, needed {end!r}")

    def _connected(self) -> socket.socket:
        try:
            plain = socket.create_connection((self.host, self.port), self.timeout_s)
        except OSError as error:
            raise ConnectionError(f"{self.target} cannot be reached: {error}") from error
        tls = tls_of(self.tls)
        return plain if tls is None else tls.context().wrap_socket(plain, server_hostname=self.host)


def _refused(lines: pa.Array) -> Iterator[Refusal]:
    yield from where(lines.is_null(), "it is null")
    yield from where(pc.match_substring_regex(lines, "[\r\n]"), "it has a line break")
    yield from where(pc.starts_with(lines, MARK), f"it begins as a mark does, with {MARK!r}")


def _frames(context: SliceContext, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """What to send, piece by piece. The last piece is the end mark, which is also what the answer must be."""
    attempt = context.attempt
    slice_ = f"{context.job_id} {attempt.epoch} {attempt.generation} {context.slice}"
    rows = 0
    yield f"{MARK}begin {slice_}\n"
    for batch in batches:
        rows += batch.num_rows
        yield "".join(f"{line}\n" for line in batch.column("value").to_pylist())
    yield f"{MARK}end {slice_} {rows}\n"
