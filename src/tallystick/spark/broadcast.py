"""Broadcast state: rules from a control stream that every task sees, the same ones whenever an epoch is done again.

::

    limits = ts.state.Broadcast("limits", ts.sources.Kafka(servers, "limits"), key="sensor", steps=parsed)


    def alarms(readings):
        return limits.join(readings).where("value > high")


    job = ts.Job("alarms", source=…, broadcast=limits, steps=alarms, …)

The control stream is a source of the query: Spark logs how far it is read, for each epoch, in one line with all other
sources. Rules of epoch N are those of all control rows up to that line: docs/decisions/0020-broadcast-state.md.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from tallystick.errors import ConfigError, EpochError
from tallystick.sources.base import RangeSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PROPERTY = "tallystick.broadcast."
"""Before the state's name: the local property of an epoch's Spark job that carries its rules to the tasks."""
LIMIT_BYTES = 1 << 20
"""Of all rules of one state, packed. They go to every task of every epoch."""
_WHOLE = {"ignoreNullFields": "false"}


class Broadcast:
    """Rules by key, changed by a control stream and seen by every task of a job.

    ``source`` is the control stream: a collection, files or Kafka. ``steps`` makes its rows into rules, row by row (no
    grouping, no joins). A rule replaces the one with the same ``key`` (a column or several); rows for which the SQL
    condition ``remove`` is true take the key's rule away. Rows of one epoch are applied in the order of the source.

    In a job's steps use `join`, or call `get` inside a function that runs in tasks, `Keyed.on_rows` for example. An
    epoch sees one set of rules throughout, and the same one if it is done again.
    """

    def __init__(
        self,
        name: str,
        source: RangeSource,
        *,
        key: str | Sequence[str],
        remove: str | None = None,
        steps: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        if not isinstance(name, str) or re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
            raise ConfigError(f"a broadcast state's name is {name!r}, needed letters, digits, '_' and '-' only")
        if not isinstance(source, RangeSource):
            raise ConfigError(
                f"broadcast state {name}: {type(source).__name__} cannot be a control stream, because its rows cannot "
                "be read once more by their offsets. needed ts.sources.Kafka, Files or Collection"
            )
        self.name = name
        self.source = source
        self.key = (key,) if isinstance(key, str) else tuple(key)
        if not self.key or not all(isinstance(column, str) and column.strip() for column in self.key):
            raise ConfigError(f"broadcast state {name}: key needs a column or several, found {key!r}")
        if remove is not None and (not isinstance(remove, str) or not remove.strip()):
            raise ConfigError(f"broadcast state {name}: remove needs a SQL condition, found {remove!r}")
        if not callable(steps) and steps is not None:
            raise ConfigError(f"broadcast state {name}: steps is a function of a DataFrame, found {steps!r}")
        self._remove = remove
        self._steps = steps
        self.schema: StructType | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the name and the key: no source, which may hold secrets, and no functions."""
        return {"name": self.name, "key": self.key}

    def bind(self, control: DataFrame) -> StructType:
        """Driver, before rows are joined: check the rules' columns against the control stream. Their schema."""
        rules = self._rules(control)
        missing = [column for column in self.key if column not in rules.columns]
        if missing:
            raise ConfigError(
                f"broadcast state {self.name} has no column {', '.join(missing)} to be its key: it has "
                f"{', '.join(rules.columns)}"
            )
        try:
            rules.select(*self._texts(rules))
        except PySparkException as cause:
            raise ConfigError(f"broadcast state {self.name} cannot work: {str(cause).splitlines()[0]}") from cause
        self.schema = rules.schema
        return rules.schema

    def changes(self, control: DataFrame) -> Iterator[tuple[str, str | None]]:
        """Driver: rows of the control stream as keys and their new rules, in order; None takes the rule away."""
        rules = self._rules(control)
        for key, rule, gone in rules.select(*self._texts(rules)).toLocalIterator():
            yield key, None if gone else rule

    def _rules(self, control: DataFrame) -> DataFrame:
        rules = control if self._steps is None else self._steps(control)
        if self._steps is not None and not hasattr(rules, "schema"):
            raise ConfigError(f"broadcast state {self.name}: steps gave {rules!r}, needed a DataFrame")
        return rules

    def _texts(self, rules: DataFrame) -> list[Column]:
        gone = F.lit(False) if self._remove is None else F.coalesce(F.expr(self._remove), F.lit(False))
        rule = F.to_json(F.struct(*(F.col(f"`{column}`") for column in rules.columns)), _WHOLE)
        return [_text({column: F.col(f"`{column}`") for column in self.key}), rule, gone]

    def join(self, rows: DataFrame, on: str | Sequence[str] | None = None, how: str = "inner") -> DataFrame:
        """Rows with the columns of their rule beside them.

        ``on`` are the columns of the rows that hold the key, if they have other names. ``how`` is ``inner`` (rows
        without a rule are left out) or ``left`` (their rule is null). State and watermarks are not touched. The query
        that writes these rows must be given this state, too: ``broadcast=…`` of `Job` or `write_stream`.
        """
        if how not in ("inner", "left"):
            raise ConfigError(f"broadcast state {self.name}: how is {how!r}, needed 'inner' or 'left'")
        held = (on,) if isinstance(on, str) else tuple(on or self.key)
        schema = self.schema if self.schema is not None else self.bind(self.source.load(rows.sparkSession))
        added = [field.name for field in schema if field.name not in self.key]
        self._check_join(rows, held, added)
        typed = {
            column: F.col(f"`{name}`").cast(schema[column].dataType)
            for column, name in zip(self.key, held, strict=True)
        }
        found = F.from_json(_lookup(self.name)(_text(typed)), schema)
        joined = rows.withColumn(_RULE, found)
        if how == "inner":
            joined = joined.where(F.col(_RULE).isNotNull())
        rules = [F.col(f"{_RULE}.`{column}`").alias(column) for column in added]
        return joined.select(*(F.col(f"`{column}`") for column in rows.columns), *rules)

    def _check_join(self, rows: DataFrame, held: tuple[str, ...], added: list[str]) -> None:
        if len(held) != len(self.key):
            raise ConfigError(f"broadcast state {self.name} has the key {self.key}, found on={held}")
        missing = [column for column in held if column not in rows.columns]
        if missing:
            raise ConfigError(
                f"broadcast state {self.name} is joined on {', '.join(missing)}, which the rows do not have: they have "
                f"{', '.join(rows.columns)}. name the columns that hold the key: on=…"
            )
        clash = [column for column in added if column in rows.columns]
        if clash:
            raise ConfigError(
                f"broadcast state {self.name} and the rows both have {', '.join(clash)}: rename it in the steps of the "
                "broadcast state"
            )

    def get(self) -> Mapping[Any, Mapping[str, Any]]:
        """Executor: all rules of the epoch at hand, by key; a key of several columns is a tuple. Only to be read.

        Values are those of JSON: a time is a text.
        """
        return current(self.name).by_key


_RULE = "__tallystick_rule"


def _text(columns: Mapping[str, Column]) -> Column:
    return F.to_json(F.struct(*(value.alias(name) for name, value in columns.items())), _WHOLE)


def _lookup(state: str) -> Callable[[Column], Column]:
    """Key to rule, both as texts, a batch of rows at a time."""

    def find(keys: pa.Array) -> pa.Array:
        rules = current(state).texts
        return pa.array([rules.get(key) for key in keys.to_pylist()], pa.string())

    return arrow_udf(find, "string")  # type: ignore[call-overload, no-any-return]


def broadcasts_of(given: Broadcast | Sequence[Broadcast], taken: Iterable[str] = ()) -> tuple[Broadcast, ...]:
    """What was given as ``broadcast=``, checked; ``taken`` are names of other sources."""
    listed = (given,) if isinstance(given, Broadcast) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(each, Broadcast) for each in listed):
        raise ConfigError(f"broadcast needs ts.state.Broadcast(…), or several of them, found {given!r}")
    names = [*taken, *(each.name for each in listed)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"sources and broadcast states need names of their own, found {', '.join(twice)} twice")
    return tuple(listed)


def bound(states: Sequence[Broadcast], spark: SparkSession) -> dict[str, DataFrame]:
    """Driver: the control streams by name, read in this session, and each state checked against its own."""
    controls = {each.name: each.source.load(spark) for each in states}
    for each in states:
        each.bind(controls[each.name])
    return controls


def rides_along(rows: DataFrame, controls: Sequence[DataFrame]) -> DataFrame:
    """Driver: the same rows, in a query that also reads the control streams, so that Spark logs their offsets."""
    for control in controls:
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
        rows = rows.union(control.where(F.lit(False)).select(*nothing))
    return rows


@dataclass(frozen=True)
class Rules:
    """One set of rules, as a worker holds it for as long as nothing changes."""

    digest: str
    texts: Mapping[str, str]

    @cached_property
    def by_key(self) -> Mapping[Any, Mapping[str, Any]]:
        parsed = {}
        for key, rule in self.texts.items():
            values = tuple(json.loads(key).values())
            parsed[values[0] if len(values) == 1 else values] = MappingProxyType(json.loads(rule))
        return MappingProxyType(parsed)


def packed(texts: Mapping[str, str], digest: str) -> str:
    """Driver: rules as the value of a local property."""
    data = json.dumps(dict(texts), separators=(",", ":")).encode()
    return f"{digest}:{base64.b64encode(zlib.compress(data)).decode()}"


def current(state: str) -> Rules:
    """Executor: the rules of the epoch that this task works for. Unpacked once per worker and change."""
    task = TaskContext.get()
    carried = task.getLocalProperty(PROPERTY + state) if task is not None else None
    if not carried:
        raise EpochError(
            f"the rules of broadcast state {state!r} are there in the tasks of an epoch only: was it given to "
            "ts.Job(broadcast=…) or ts.write_stream(broadcast=…)?"
        )
    digest, _, data = carried.partition(":")
    held = _held.get(state)
    if held is None or held.digest != digest:
        held = _held[state] = Rules(digest, json.loads(zlib.decompress(base64.b64decode(data))))
    return held


_held: dict[str, Rules] = {}
