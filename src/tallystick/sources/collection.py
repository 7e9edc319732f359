"""Rows of the program itself: a list, or a function from an offset to a row. Read this source first."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json, Mode
from tallystick.sources.base import RangeSource, SourceLog, need_positive, need_whole
from tallystick.sources.disorder import Disorder
from tallystick.sources.lag import Lag
from tallystick.sources.rows import Row, arrow_schema, infer_schema, parse_ddl, to_batch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tallystick.sources.offset_reader import Rows

_registering = threading.Lock()
"""Spark keeps data sources by name and looks the name up in `load`: nobody may come between the two."""


class Collection(RangeSource):
    """Rows by offset: the same offsets always give the same rows, cut into the same partitions.

    ``items`` is a sequence of dictionaries or tuples, or a function of the offset, called on executors, with
    ``length=``. The function must depend on the offset alone. ``schema`` is a `StructType` or words such as
    ``id long, app string``; dictionaries do without, if every column has a value somewhere.

    - ``per_epoch``: every epoch has exactly this many rows; only the last may have fewer.
    - ``per_second``: rows come due at this rate, counted from where the run starts. With ``per_epoch`` an epoch is
      released whole when its first row is due, otherwise whatever is due makes an epoch. The trigger
      ``availableNow`` takes all rows as due.
    - ``delay``: nothing is due before the run is so old.
    - ``partitions``: how many tasks read an epoch.
    - ``disorder``: rows come out of their order, some of them late; such a collection must not grow.

    A restart goes on with its checkpoint. Rows may have been added at the end by then, never taken away or changed.
    Listed rows are pickled to Spark; for more than some hundred megabytes use a function.
    """

    facts = SourceFacts(
        "collection",
        Mode.EXACTLY_ONCE,
        "rows are found by their offset; the same offsets give the same rows",
        "a function must depend on the offset alone; rows are only ever added at the end",
    )

    def __init__(
        self,
        items: Sequence[Row] | Callable[[int], Row],
        schema: StructType | str | None = None,
        per_epoch: int | None = None,
        per_second: float | None = None,
        partitions: int = 2,
        length: int | None = None,
        name: str = "collection",
        delay: str = "0s",
        disorder: Disorder | None = None,
    ) -> None:
        need_whole("collection", per_epoch=per_epoch, partitions=partitions)
        need_positive("collection", per_second=per_second)
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise ConfigError(f"collection: the name {name!r} needs letters, digits and underscores only")
        self._name = name
        self._function = items if callable(items) else None
        self._items: tuple[Row, ...] = () if callable(items) else _listed(items, length)
        self._length = _needed_length(length) if callable(items) else len(self._items)
        self._schema = schema if schema is not None else self._inferred()
        self._per_epoch, self._per_second, self._partitions = per_epoch, per_second, partitions
        self._delay_s = duration_s(delay)
        if not isinstance(disorder, Disorder | None):
            raise ConfigError(f"collection: disorder is {disorder!r}, needed ts.sources.Disorder(…)")
        self._disorder = disorder
        if not isinstance(self._schema, str):
            self._rows(self._schema)  # rows that do not fit are found now; words wait for Spark's parser

    @property
    def name(self) -> str:
        return self._name

    @property
    def length(self) -> int:
        return self._length

    @property
    def schema(self) -> StructType | str:
        """As declared or inferred."""
        return self._schema

    def load(self, spark: SparkSession) -> DataFrame:
        from tallystick.sources.offset_reader import data_source

        schema = parse_ddl(self._schema) if isinstance(self._schema, str) else self._schema
        registered = f"tallystick_collection_{self._name}"  # the same in every process: it may end up in a checkpoint
        source = data_source(registered, self._rows(schema))
        with _registering:
            spark.dataSource.register(source)
            return spark.readStream.format(registered).load()

    def load_range(self, spark: SparkSession, start: Json, end: Json, log: SourceLog) -> DataFrame:
        from tallystick.sources.offset_reader import range_batch

        schema = parse_ddl(self._schema) if isinstance(self._schema, str) else self._schema
        first = 0 if start is None else int(start["offset"])
        table = pa.Table.from_batches([range_batch(self._rows(schema), first, int(end["offset"]))])
        return spark.createDataFrame(table, schema)

    def _describe(self, offset: Json) -> str | None:
        return str(offset["offset"]) if isinstance(offset, dict) and "offset" in offset else None

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag:
        """Rows that are not read, due or not."""
        return Lag(records=max(0, self._length - (0 if read is None else int(read["offset"]))))

    def _inferred(self) -> StructType:
        if self._function is not None:
            raise ConfigError("collection: a function of the offset needs schema=, such as 'id long, app string'")
        if not self._items:
            raise ConfigError("collection: there are no rows to tell the columns from: give schema=")
        return infer_schema(self._items)

    def _rows(self, schema: StructType) -> Rows:
        from tallystick.sources.offset_reader import Rows

        arrow = arrow_schema(schema)
        listed = None if self._function is not None else to_batch(self._items, arrow)
        function = self._function
        if self._disorder is not None:
            order = self._disorder.order(self._length)
            listed = listed.take(order) if listed is not None else None
            function = _Reordered(function, order) if function is not None else None
        return Rows(
            self._length,
            schema,
            listed,
            function,
            self._per_epoch,
            self._per_second,
            self._partitions,
            self._delay_s,
        )


class _Reordered:
    """A function of the offset whose rows come in another order."""

    def __init__(self, function: Callable[[int], Row], order: npt.NDArray[np.int64]) -> None:
        self._function = function
        self._order = order

    def __call__(self, offset: int) -> Row:
        return self._function(int(self._order[offset]))


def _listed(items: Sequence[Row], length: int | None) -> tuple[Row, ...]:
    if length is not None:
        raise ConfigError(f"collection: length={length} is for a function; a list of {len(items)} rows has its own")
    return tuple(items)


def _needed_length(length: int | None) -> int:
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise ConfigError(
            f"collection: a function of the offset needs length=, a whole number of rows, found {length!r}"
        )
    return length
