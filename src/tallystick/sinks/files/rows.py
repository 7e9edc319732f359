"""What all sinks of files share: how rows must look, how they are written, and what is said when that fails."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.records import Json
from tallystick.sinks.base import TransactionalSink
from tallystick.sinks.files.settings import Settings
from tallystick.sinks.files.shape import file_columns, free_name
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.letters import documents, need
from tallystick.sinks.refusals import Refusal

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

P = TypeVar("P")
R = TypeVar("R")


class RowsAsFiles(TransactionalSink[Transaction[P]], Generic[P]):
    """Rows become files of one of the formats; where those are staged and how they are published is the subclass's."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def target(self) -> str:
        return self.settings.target

    @property
    @abstractmethod
    def look(self) -> str:
        """What to type to see what is wrong with the target."""

    @abstractmethod
    def seal(self, transaction: Transaction[P]) -> Json:
        """Executor: end the files, make all of it durable, and give the committable."""

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        return file_columns(schema, column, self.settings)

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for setting in ("partition_by", "required"):
            need(self.target, setting, getattr(self.settings, setting))
        if self.settings.format in ("parquet", "orc"):
            return rows
        if self.settings.format != "json":
            raise ConfigError(
                f"{self.target} cannot be the sink for dead letters as {self.settings.format}: use parquet, orc or json"
            )
        folders = {name: rows.column(name).cast(pa.string()) for name in self.settings.partition_by}
        lines = documents(rows.drop_columns(list(folders)))
        return pa.record_batch({free_name("value", self.settings): lines, **folders})

    def write(self, transaction: Transaction[P], rows: pa.RecordBatch) -> Sequence[Refusal]:
        return self.step(lambda: transaction.write(rows))

    def pre_commit(self, transaction: Transaction[P]) -> Json:
        return self.step(lambda: self.seal(transaction))

    def step(self, step: Callable[[], R]) -> R:
        """Run a step on what is staged; what Arrow and the file system raise becomes a `SinkError`."""
        try:
            return step()
        except OSError as error:
            reason = f"{error} ({os.strerror(error.errno)})" if error.errno and not error.strerror else str(error)
            raise SinkError(
                f"cannot stage files in {self.target}: {reason}. nothing of this slice was published. needed a target "
                f"that is there, writable and has free space. look with: {self.look}"
            ) from error
        except pa.ArrowException as error:
            raise RowRefusedError(
                f"rows cannot be written as {self.settings.format} to {self.target}: {error}. nothing was published: "
                "change or filter these rows before the sink"
            ) from error
