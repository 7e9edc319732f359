"""The columns of a Delta table that is made here, or that rows are to go to: Spark's types, read back with Delta."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import types as t

from tallystick.errors import ConfigError
from tallystick.records import Outcome
from tallystick.sinks import Delta
from tallystick.sinks.base import JobContext
from tallystick.testing.sinks import context

NOW = dt.datetime(2026, 1, 31, 12, 30, 15, 123456)
ALL: dict[str, tuple[t.DataType, pa.DataType, Any]] = {
    "flag": (t.BooleanType(), pa.bool_(), True),
    "tiny": (t.ByteType(), pa.int8(), -5),
    "small": (t.ShortType(), pa.int16(), 500),
    "whole": (t.IntegerType(), pa.int32(), 70_000),
    "long": (t.LongType(), pa.int64(), 1 << 40),
    "single": (t.FloatType(), pa.float32(), 0.5),
    "double": (t.DoubleType(), pa.float64(), 0.1),
    "money": (t.DecimalType(12, 2), pa.decimal128(12, 2), Decimal("12.50")),
    "name": (t.StringType(), pa.string(), "räw"),
    "raw": (t.BinaryType(), pa.binary(), b"\x00\xff"),
    "day": (t.DateType(), pa.date32(), dt.date(2026, 1, 31)),
    "at": (t.TimestampType(), pa.timestamp("us", "Europe/Berlin"), NOW.replace(tzinfo=dt.timezone.utc)),
    "local": (t.TimestampNTZType(), pa.timestamp("us"), NOW),
    "tags": (t.ArrayType(t.StringType()), pa.list_(pa.string()), ["a", None]),
    "counts": (t.MapType(t.StringType(), t.LongType()), pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "where": (
        t.StructType([t.StructField("x", t.DoubleType()), t.StructField("y", t.StringType())]),
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        {"x": 1.5, "y": None},
    ),
}


def schema_of(*names: str, nullable: bool = True) -> t.StructType:
    return t.StructType([t.StructField(name, ALL[name][0], nullable) for name in names])


def made(path: Path, schema: t.StructType, **settings: Any) -> Delta:
    sink = Delta(path, **settings)
    sink.columns(schema, lambda name: pytest.fail(f"{name} needs no change"))
    sink.check(JobContext())
    return sink


def test_every_type_is_read_back(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", schema_of(*ALL))
    fields = [pa.field(name, kind) for name, (_, kind, _) in ALL.items()]
    columns = [pa.array([value, None], kind) for _, kind, value in ALL.values()]
    transaction = sink.begin_transaction(context())
    sink.write(transaction, pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    first, second = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert first == {name: value for name, (_, _, value) in ALL.items()}
    assert set(second.values()) == {None}


def test_columns_may_be_null_unless_they_are_required(tmp_path: Path) -> None:
    """Spark's own idea of what is nullable changes with the plan; a table's must not."""
    made(tmp_path / "t", schema_of("long", "name", nullable=False), required=["long"])
    found = DeltaTable(str(tmp_path / "t")).schema().fields
    assert {field.name: field.nullable for field in found} == {"long": False, "name": True}
    with pytest.raises(ConfigError, match=r"has no nulls in long: say required=\['long'\]"):
        made(tmp_path / "t", schema_of("long", "name"))


def test_a_table_that_is_there_is_used(tmp_path: Path) -> None:
    made(tmp_path / "t", schema_of(*ALL))
    made(tmp_path / "t", schema_of(*reversed(ALL), nullable=False))
    assert DeltaTable(str(tmp_path / "t")).version() == 0


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("long",), "column 'name' is missing in the rows and \"string\" in the Delta table"),
        (("long", "name", "day"), "column 'day' is \"date\" in the rows and missing in the Delta table"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    made(tmp_path / "t", schema_of("long", "name"))
    with pytest.raises(ConfigError, match=said):
        made(tmp_path / "t", schema_of(*names))


def test_other_types_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "t", schema_of("long", "tags"))
    other = t.StructType([t.StructField("long", t.IntegerType()), t.StructField("tags", ALL["tags"][0])])
    with pytest.raises(ConfigError, match='\'long\' is "integer" in the rows and "long" in the Delta table'):
        made(tmp_path / "t", other)


def test_types_that_delta_does_not_have_are_refused(tmp_path: Path) -> None:
    schema = t.StructType([t.StructField("took", t.DayTimeIntervalType())])
    with pytest.raises(ConfigError, match="cannot hold interval"):
        made(tmp_path / "t", schema)
    assert not (tmp_path / "t").exists()


def test_partition_columns_that_have_several_spellings_are_refused(tmp_path: Path) -> None:
    sink = Delta(tmp_path / "t", partition_by=["at"])
    sink._schema = json.loads(schema_of("long", "at").json())
    with pytest.raises(ConfigError, match="the partition column 'at' is \"timestamp\": needed one of string, byte"):
        sink.check(JobContext())
