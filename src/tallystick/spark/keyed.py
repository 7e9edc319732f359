"""The state of a checkpoint: which operators keep some, how much, and its values, read by Spark's state data source.

Works on any copy of a checkpoint, also while its job runs: files are read, nothing is locked or written. What Spark has
removed (`Checkpoint.retention`) cannot be read, and that is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.errors import CheckpointError
from tallystick.records import Json
from tallystick.spark.tree import read_file

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_VERSION = re.compile(r"state/(?P<operator>\d+)/\d+/(?:.+/)?(?P<version>\d+)(?:_[^/]*)?\.\w+")
_STATE = re.compile(r"state/(?P<operator>\d+)/(?P<partition>\d+)/")
_METADATA = re.compile(r"state/(?P<operator>\d+)/_metadata/(?:metadata|v2/(?P<batch>\d+))")


@dataclass
class Operator:
    """One operator with state. ``bytes`` are all its files, ``epoch_bytes`` those that one epoch wrote."""

    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    bytes: int
    epoch_bytes: int
    values: list[Values] = field(default_factory=list)

    def to_json(self) -> Json:
        return {
            "operator": self.number,
            "name": self.name,
            "stores": list(self.stores),
            "partitions": self.partitions,
            "bytes": self.bytes,
            "epoch_bytes": self.epoch_bytes,
            "state": [values.to_json() for values in self.values],
        }


@dataclass(frozen=True)
class Values:
    """Some keys of one store or state variable, in the order of keys; ``keys`` is how many there are in all."""

    name: str
    keys: int
    sample: tuple[tuple[Json, Json], ...]

    def to_json(self) -> Json:
        return {
            "name": self.name,
            "keys": self.keys,
            "sample": [{"key": key, "value": value} for key, value in self.sample],
        }


def operators(location: str, tree: Mapping[str, int], epoch: int, spark: SparkSession | None) -> list[Operator]:
    """The operators with state, from the files alone."""
    newest: dict[int, str] = {}
    for path in tree:
        match = _METADATA.fullmatch(path)
        if match is not None and (match["batch"] is None or int(match["batch"]) <= epoch):
            newest[int(match["operator"])] = path
    return [_operator(location, number, path, tree, epoch, spark) for number, path in sorted(newest.items())]


def epoch_bytes(tree: Mapping[str, int], epoch: int) -> int:
    """What one epoch added to the checkpoint: its logs, its decisions and its state. Shared files count for none."""
    logs = {f"offsets/{epoch}", f"commits/{epoch}"}
    decisions = f"tallystick/attempts/{epoch:012d}."
    own = sum(size for path, size in tree.items() if path in logs or path.startswith(decisions))
    return own + _state_bytes(tree, epoch)


def _state_bytes(tree: Mapping[str, int], epoch: int, operator: int | None = None) -> int:
    total = 0
    for path, size in tree.items():
        match = _VERSION.fullmatch(path)
        if match is not None and int(match["version"]) == epoch + 1 and operator in (None, int(match["operator"])):
            total += size
    return total


def _operator(
    location: str, number: int, path: str, tree: Mapping[str, int], epoch: int, spark: SparkSession | None
) -> Operator:
    text = read_file(location, path, spark)
    try:
        described = json.loads(text.split("\n", 1)[1])
        name = str(described["operatorInfo"]["operatorName"])
        stores = tuple(str(store["storeName"]) for store in described["stateStoreInfo"])
        partitions = max(int(store["numPartitions"]) for store in described["stateStoreInfo"])
    except (LookupError, TypeError, ValueError) as cause:
        raise CheckpointError(
            f"{location}/{path} does not describe an operator of Spark ({type(cause).__name__}): restore it from a copy"
        ) from cause
    partitions = len(_partitions(tree, epoch, number)) or partitions
    held = [size for found, size in tree.items() if (at := _STATE.match(found)) and int(at["operator"]) == number]
    return Operator(number, name, stores, partitions, sum(held), _state_bytes(tree, epoch, number))


def _partitions(tree: Mapping[str, int], epoch: int, operator: int) -> set[int]:
    """Those that the epoch wrote. What Spark says of an operator is from its first epoch, and stays when it is dealt
    out to others; folders of partitions that are not used any more stay, too."""
    found = set()
    for path in tree:
        at, written = _STATE.match(path), _VERSION.fullmatch(path)
        if at is None or written is None:
            continue
        if (int(at["operator"]), int(written["version"])) == (operator, epoch + 1):
            found.add(int(at["partition"]))
    return found


def read_values(
    spark: SparkSession, location: str, operator: Operator, epoch: int, key: str | None, limit: int
) -> list[Values]:
    """The values of one operator at the end of an epoch: those of one key, or the first so many keys."""
    try:
        return [
            _values(name, frame, key, limit)
            for name, frame in _frames(spark, location, operator, epoch)
            if frame.columns
        ]
    except (PySparkException, Py4JError) as cause:
        found = str(cause).strip().splitlines()[0]
        raise CheckpointError(
            f"the state of operator {operator.number} ({operator.name}) at epoch {epoch} cannot be read from "
            f"{location}: {found}. Spark keeps the state of recent epochs only: see 'tallystick checkpoints list "
            f"{location}'. without values: add --no-state"
        ) from cause


def _frames(spark: SparkSession, location: str, operator: Operator, epoch: int) -> Iterator[tuple[str, DataFrame]]:
    _ = spark.streams  # with it comes the coordinator of state stores, which a session without streams does not have
    reader = spark.read.format("statestore").option("batchId", epoch).option("operatorId", operator.number)
    if operator.name.startswith("symmetricHashJoin"):
        for side in ("left", "right"):
            yield side, reader.option("joinSide", side).load(location)
    elif operator.name.startswith("transformWithState"):
        for variable in _variables(spark, location, operator.number):
            yield variable, reader.option("stateVarName", variable).load(location)
    else:
        for store in operator.stores:
            yield store, reader.option("storeName", store).load(location)


def _variables(spark: SparkSession, location: str, operator: int) -> list[str]:
    rows = spark.read.format("state-metadata").load(location).where(f"operatorId = {operator}").collect()
    described = json.loads(rows[0]["operatorProperties"] or "{}") if rows else {}
    return sorted({str(variable["stateName"]) for variable in described.get("stateVariables", [])})


def _values(name: str, frame: DataFrame, key: str | None, limit: int) -> Values:
    from functools import reduce

    from pyspark.sql import functions as F

    fields = [field.name for field in frame.schema["key"].dataType]  # type: ignore[attr-defined]
    if key is not None:
        matches = [F.col(f"key.`{field}`").cast("string") == F.lit(key) for field in fields]
        frame = frame.where(reduce(lambda one, other: one | other, matches))
    columns = [_fields(frame, column) for column in frame.columns if column not in ("key", "partition_id")]
    options = {"ignoreNullFields": "false"}
    as_json = frame.select(F.to_json("key", options), F.to_json(F.struct(*columns), options)).toDF("key", "value")
    sample = as_json.orderBy("key", "value").limit(limit).collect()
    return Values(name, frame.count(), tuple((json.loads(row.key), _value(json.loads(row.value))) for row in sample))


def _fields(frame: DataFrame, column: str) -> Column:
    """A column, field by field: rows of a join have one field more than their schema says."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    kind = frame.schema[column].dataType
    if not isinstance(kind, StructType):
        return F.col(column)
    return F.struct(*(F.col(f"{column}.`{field.name}`") for field in kind)).alias(column)


def _value(found: dict[str, Json]) -> Json:
    """A store has one column of values; state variables may have more."""
    return found["value"] if set(found) == {"value"} else found
