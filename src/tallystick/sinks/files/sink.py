"""The file sink: staged beside the target, published by renaming. Essays: `publish.py`, `..staging`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pyarrow as pa

from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink
from tallystick.sinks.files import settings as parse
from tallystick.sinks.files.publish import publish_all
from tallystick.sinks.files.settings import Settings
from tallystick.sinks.files.shape import file_columns
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

STAGING = ".tallystick"

R = TypeVar("R")


class Files(TransactionalSink[Transaction]):
    """Publish rows as files in a folder of a local or mounted POSIX file system.

    Readers need nothing special: whatever is in the folder is committed, and each file appears whole. The files of
    one epoch appear one after the other.

    path             the folder; made if it is not there. Driver and executors must see it under the same path
    format           parquet, orc, json (one object per line), csv or text (one string column)
    partition_by     columns that become folders, ``day=2026-01-31/``, and are not in the files
    compression      None: the format's default (parquet snappy, orc zstd, others none). json, csv and text take
                     gzip and bzip2, and zstd and lz4, which Spark reads only with Hadoop's native libraries or not
                     at all
    roll_bytes       begin a new file when this one is larger; always at the end of an epoch
    roll_age         begin a new file when this one is older, such as "5m"
    row_group_bytes  how many bytes of rows, in memory, make a row group (parquet) or stripe (orc)
    required         columns in which a null is a `RowRefusedError`
    header           csv: begin each file with the column names
    options          json and csv: options of Spark's to_json and to_csv. As in Spark, null fields are left out of JSON
                     unless ``ignoreNullFields`` is "false". Unlike in Spark, timestamps keep their microseconds, and
                     CSV keeps spaces and doubles quotes: Spark reads such files with escape='"', and with multiLine
                     if values have line breaks
    """

    facts = SinkFacts(
        "files",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "staged beside the target, published by an atomic rename",
        "one POSIX file system that the driver and all executors share; the files of an epoch appear one by one",
    )

    def __init__(
        self,
        path: str | Path,
        format: str = "parquet",  # noqa: A002 - the word that Spark uses
        partition_by: Sequence[str] = (),
        compression: str | None = None,
        roll_bytes: int | None = None,
        roll_age: str | None = None,
        row_group_bytes: int = 32 << 20,
        required: Sequence[str] = (),
        header: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        spec = parse.known_format(format)
        if header and format != "csv":
            raise ConfigError(f"only csv files have a header, found header=True with format={format!r}: leave it out")
        self.settings = Settings(
            path=parse.posix_path(path),
            format=format,
            partition_by=parse.names("partition_by", partition_by),
            compression=parse.known_compression(spec, compression),
            roll_bytes=None if roll_bytes is None else parse.positive_bytes("roll_bytes", roll_bytes),
            roll_age_s=None if roll_age is None else parse.age_s("roll_age", roll_age),
            row_group_bytes=parse.positive_bytes("row_group_bytes", row_group_bytes),
            required=parse.names("required", required),
            header=header,
            options=parse.format_options(spec, options or {}),
        )
        self.path = self.settings.path
        self.staging = Staging(self.path / STAGING)

    @property
    def target(self) -> str:
        return f"file:{self.path}"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        return file_columns(schema, column, self.settings)

    def check(self) -> None:
        """Make the folder if needed, and try what a commit will do: write, fsync, rename."""
        if self.path.exists() and not self.path.is_dir():
            raise SinkError(f"{self.path} is a file, needed a folder: move it away or choose another path")
        probe, landed = self.staging.root / f"probe-{uuid.uuid4().hex}", self.path / f"{STAGING}-{uuid.uuid4().hex}"
        try:
            self.staging.root.mkdir(parents=True, exist_ok=True)
            self._check_one_file_system()
            try:
                probe.write_bytes(b"tallystick")
                probe.rename(landed)
            finally:
                probe.unlink(missing_ok=True)
                landed.unlink(missing_ok=True)
        except OSError as error:
            raise SinkError(
                f"cannot publish files in {self.path}: {error}. needed a folder that this user may write to, on a disk "
                f"with free space. look with: ls -ld {self.path}; df {self.path}"
            ) from error

    def _check_one_file_system(self) -> None:
        """A rename is atomic within one file system, and does not exist between two."""
        if self.path.stat().st_dev != self.staging.root.stat().st_dev:
            raise SinkError(
                f"{self.staging.root} is on another file system than {self.path}, so files cannot be published by "
                f"renaming: unmount it or delete the link, then start the job again"
            )

    def begin_transaction(self, context: SliceContext) -> Transaction:
        return self._staging(lambda: Transaction(self.settings, self.staging.begin(context), context))

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> None:
        self._staging(lambda: transaction.write(rows))

    def pre_commit(self, transaction: Transaction) -> Json:
        return self._staging(lambda: self._seal(transaction))

    def _seal(self, transaction: Transaction) -> Json:
        transaction.close()
        committable = {"dir": self.staging.relative(transaction.folder), "files": transaction.files()}
        self.staging.seal(transaction.folder, committable)
        return committable

    def rollback(self, transaction: Transaction) -> None:
        transaction.discard()
        self.staging.roll_back(transaction.folder)

    def commit(self, committable: Json) -> Outcome:
        return self.commit_all([committable], recovering=False)[0]

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return publish_all(self.path, self.staging, committables)

    def abort(self, committable: Json) -> None:
        self._staging(lambda: self.staging.discard(self.staging.locate(committable["dir"])))

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return self._staging(lambda: list(self.staging.open(job_id)))

    def settled(self, job_id: str, epoch: int) -> None:
        self._staging(lambda: self.staging.settle(job_id, epoch))

    def _staging(self, step: Callable[[], R]) -> R:
        """Run a step on the staging area; what Arrow and the operating system raise becomes a `SinkError`."""
        try:
            return step()
        except OSError as error:
            self._fail(error)
        except pa.ArrowException as error:
            raise RowRefusedError(
                f"rows cannot be written as {self.settings.format} to {self.path}: {error}. nothing was published: "
                "change or filter these rows before the sink"
            ) from error

    def _fail(self, error: OSError) -> NoReturn:
        reason = f"{error} ({os.strerror(error.errno)})" if error.errno and not error.strerror else str(error)
        raise SinkError(
            f"cannot stage files in {self.path}: {reason}. nothing of this slice was published. needed a folder that "
            f"is there, writable and has free space. look with: ls -ld {self.path}; df {self.path}"
        ) from error
