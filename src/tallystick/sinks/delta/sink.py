"""The Delta sink: staged beside the table, added to its log in one commit. Essays: `commit.py`, `token.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks.base import JobContext
from tallystick.sinks.delta.commit import commit_epoch
from tallystick.sinks.delta.library import library
from tallystick.sinks.delta.table import make_or_check
from tallystick.sinks.delta.token import Token
from tallystick.sinks.files import settings as parse
from tallystick.sinks.files.folder import FolderSink, staged_name
from tallystick.sinks.files.partitions import values_of
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.filesystem import Posix

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class Delta(FolderSink[Path]):
    """Append rows to a Delta table in a folder of a local or mounted POSIX file system.

    The rows of an epoch appear at once, in one commit of the table's log, and any reader of Delta sees them. The table
    is made if it is not there. deltalake is needed on the driver only.

    path             the table's folder. Driver and executors must see it under the same path
    partition_by     the table's partition columns
    compression      of its Parquet files: None means snappy
    roll_bytes       begin a new file when this one is larger; always at the end of an epoch
    row_group_bytes  how many bytes of rows, in memory, make a row group
    required         columns in which a null is a `RowRefusedError`; in a table that is made here they are not nullable
    """

    facts = SinkFacts(
        "delta",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "files staged on executors, added by one commit that carries an application transaction for each slice",
        "one POSIX file system that the driver and all executors share; append only",
    )

    def __init__(
        self,
        path: str | Path,
        partition_by: Sequence[str] = (),
        compression: str | None = None,
        roll_bytes: int | None = None,
        row_group_bytes: int = 32 << 20,
        required: Sequence[str] = (),
    ) -> None:
        folder = parse.posix_path(path)
        settings = parse.checked(
            str(folder),
            partition_by=partition_by,
            compression=compression,
            roll_bytes=roll_bytes,
            row_group_bytes=row_group_bytes,
            required=required,
        )
        super().__init__(folder, Posix(), settings)
        self._schema: Json | None = None

    @property
    def target(self) -> str:
        return f"delta:{self.path}"

    @property
    def look(self) -> str:
        return f"ls -ld {self.path}; df {self.path}"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        """Delta keeps a table's columns as Spark prints them; remembered for `check`."""
        self._schema = json.loads(schema.json())
        return super().columns(schema, column)

    def check(self, job: JobContext) -> None:
        """Make the table, or check that rows can go there; and the folder that they are staged in."""
        library()
        if job.schema is not None:
            self._schema = json.loads(job.schema.json())
        make_or_check(str(self.path), self._schema, self.settings)
        self.step(lambda: self.files.make_folder(self.staging.root))

    def seal(self, transaction: Transaction[Path]) -> Json:
        self.files.finish(transaction.last_steps())
        committable = self.committable(transaction)
        self.staging.draft(transaction.place, committable)
        self.staging.seal(transaction.place)
        return committable

    def committable(self, transaction: Transaction[Path]) -> Json:
        """Files lie flat in the table's folder: the log, not their path, says what partition they belong to."""
        names = [[staged_name(number), Path(final).name] for number, final in enumerate(transaction.finals)]
        adds = []
        for (staged, _), final in zip(names, transaction.finals, strict=True):
            file = transaction.place / staged
            rows = pq.read_metadata(file).num_rows
            adds.append([file.stat().st_size, rows, values_of(str(Path(final).parent), self.settings.partition_by)])
        token = Token.of(transaction.context)
        where = self.staging.relative(transaction.place)
        return {"dir": where, "files": names, "adds": adds, "token": token.to_json()}

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return commit_epoch(self, committables)
