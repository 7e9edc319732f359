"""State per key, declared in a class: values, lists and maps that live as long as the key, timers and times to live.

::

    class Count(ts.state.Keyed):
        output = "word string, n long"
        n = ts.state.Value("long")

        def on_rows(self, key, rows, now):
            self.n.set((self.n.get() or 0) + sum(1 for _ in rows))
            yield (*key, self.n.get())

    counts = ts.state.keyed(words, by="word", state=Count())

A small front for Spark's ``transformWithState``. The state is part of the epoch's checkpoint, and `now` is the time
that Spark wrote down for the epoch before it began, so an epoch that is done again sees the same state and the same
time. Do not look at a clock of your own: that would not be deterministic.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from tallystick.config import duration_s
from tallystick.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Keyed", "List", "Map", "Now", "Timers", "Value", "keyed"]

TIMES = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}


class _Variable(ABC):
    """A declared variable, bound to Spark's when it runs. A single column is a plain value, more are a tuple."""

    def __init__(self, schema: str, ttl: str | None = None) -> None:
        self.schema = _struct(schema)
        self.ttl_ms = None if ttl is None else round(duration_s(ttl) * 1000)
        if self.ttl_ms == 0:
            raise ConfigError("a time to live is longer than nothing, such as '1h', found '0s'")
        self._held: Any = None

    def bound(self, handle: StatefulProcessorHandle, name: str) -> _Variable:
        """A copy that holds Spark's state of this name."""
        held = copy.copy(self)
        held._held = self._make(handle, name)
        return held

    @abstractmethod
    def _make(self, handle: StatefulProcessorHandle, name: str) -> Any:
        """Spark's own variable of this kind."""

    def exists(self) -> bool:
        """Whether the key at hand has any."""
        return bool(self._held.exists())

    def clear(self) -> None:
        """Forget it for the key at hand."""
        self._held.clear()


class Value(_Variable):
    """One value per key. ``schema`` is a type (``long``) or columns (``n long, seen timestamp``)."""

    def _make(self, handle: StatefulProcessorHandle, name: str) -> Any:
        return handle.getValueState(name, self.schema, self.ttl_ms)

    def get(self) -> Any:
        """None if there is none."""
        return _plain(self._held.get())

    def set(self, value: Any) -> None:
        self._held.update(_row(value))


class List(_Variable):
    """A list per key, in the order of appending."""

    def _make(self, handle: StatefulProcessorHandle, name: str) -> Any:
        return handle.getListState(name, self.schema, self.ttl_ms)

    def get(self) -> list[Any]:
        return [_plain(row) for row in self._held.get()]

    def append(self, value: Any) -> None:
        self._held.appendValue(_row(value))

    def set(self, values: Iterable[Any]) -> None:
        """Put other values in place of all; an empty list is none."""
        rows = [_row(value) for value in values]
        if rows:
            self._held.put(rows)
        else:
            self._held.clear()


class Map(_Variable):
    """A map per key."""

    def __init__(self, keys: str, values: str, ttl: str | None = None) -> None:
        super().__init__(values, ttl)
        self.keys_schema = _struct(keys)

    def _make(self, handle: StatefulProcessorHandle, name: str) -> Any:
        return handle.getMapState(name, self.keys_schema, self.schema, self.ttl_ms)

    def get(self, key: Any) -> Any:
        return _plain(self._held.getValue(_row(key)))

    def set(self, key: Any, value: Any) -> None:
        self._held.updateValue(_row(key), _row(value))

    def remove(self, key: Any) -> None:
        self._held.removeKey(_row(key))

    def items(self) -> list[tuple[Any, Any]]:
        return [(_plain(key), _plain(value)) for key, value in self._held.iterator()]


@dataclass(frozen=True)
class Now:
    """The time of the epoch, the same when it is done again. ``watermark_ms`` is that of event time."""

    processing_ms: int
    watermark_ms: int


class Timers:
    """Timers of the key at hand, by the time (in ms) at which `Keyed.on_timer` is called."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def set(self, at_ms: int) -> None:
        self._handle.registerTimer(at_ms)

    def remove(self, at_ms: int) -> None:
        self._handle.deleteTimer(at_ms)

    def all(self) -> list[int]:
        return sorted(self._handle.listTimers())


class Keyed(ABC):
    """What to do with the rows of one key. Subclass it, declare variables as class attributes, and say what comes out.

    One object serves many keys, one after the other: keep nothing on ``self`` but what is declared.
    """

    output: ClassVar[str]
    """The columns of the rows that `on_rows` and `on_timer` give."""
    timers: Timers

    @abstractmethod
    def on_rows(self, key: tuple[Any, ...], rows: Iterator[Row], now: Now) -> Iterable[Sequence[Any]]:
        """Executor: the epoch's rows of one key. Called once per key and epoch that has rows of it."""

    def on_timer(self, key: tuple[Any, ...], at_ms: int, now: Now) -> Iterable[Sequence[Any]]:
        """Executor: a timer of this key has come. Gives nothing unless it is overridden."""
        return ()


def keyed(
    rows: DataFrame, by: str | Sequence[str], state: Keyed, time: str = "none", output_mode: str = "update"
) -> DataFrame:
    """Group rows by columns and hand each group to ``state``; what comes out is a DataFrame of its ``output``.

    ``time`` is ``processing`` or ``event`` for timers and times to live (event time needs a watermark on the rows).
    The job's own output mode must be the same as ``output_mode``. With ``processing`` Spark always has one more epoch
    to run, so such a job never ends by itself, not even with ``available_now``.
    """
    if not isinstance(state, Keyed):
        raise ConfigError(f"state needs an object of a class of yours below ts.state.Keyed, found {state!r}")
    if time not in TIMES:
        raise ConfigError(f"time {time!r} is unknown: needed one of {', '.join(TIMES)}")
    if output_mode not in ("append", "update"):
        raise ConfigError(f"output mode {output_mode!r} is unknown: needed append or update")
    if find_spec("google.protobuf") is None:
        raise MissingExtraError("keyed state needs protobuf: pip install 'tallystick[state]'")
    timed = [name for name, variable in _declared(state) if variable.ttl_ms is not None]
    if timed and time != "processing":
        raise ConfigError(f"{', '.join(timed)} has a time to live, which needs time='processing', found {time!r}")
    columns = [by] if isinstance(by, str) else list(by)
    try:
        schema = getattr(state, "output", "")
        names = cast("StructType", StructType.fromDDL(schema)).fieldNames()
        return rows.groupBy(*columns).transformWithState(
            _Processor(state, names), schema, output_mode.capitalize(), TIMES[time]
        )
    except PySparkException as cause:
        raise ConfigError(f"keyed state by {', '.join(columns)} cannot work: {str(cause).splitlines()[0]}") from cause


class _Processor(StatefulProcessor):
    """What Spark calls."""

    def __init__(self, state: Keyed, columns: Sequence[str]) -> None:
        self._state = state
        self._row = Row(*columns)

    def init(self, handle: StatefulProcessorHandle) -> None:
        for name, variable in _declared(self._state):
            setattr(self._state, name, variable.bound(handle, name))
        self._state.timers = Timers(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        for row in self._state.on_rows(_key(key), rows, _now(timerValues)):
            yield self._row(*row)

    def handleExpiredTimer(  # noqa: N802 - Spark's own name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        for row in self._state.on_timer(_key(key), expiredTimerInfo.getExpiryTimeInMs(), _now(timerValues)):
            yield self._row(*row)

    def close(self) -> None:
        """Nothing is held."""


def _declared(state: Keyed) -> list[tuple[str, _Variable]]:
    names = sorted({name for kind in type(state).__mro__ for name in vars(kind)})
    found = ((name, getattr(type(state), name)) for name in names)
    return [(name, value) for name, value in found if isinstance(value, _Variable)]


def _key(key: Any) -> tuple[Any, ...]:
    return tuple(key) if isinstance(key, tuple) else (key,)


def _now(values: TimerValues) -> Now:
    return Now(values.getCurrentProcessingTimeInMs(), values.getCurrentWatermarkInMs())


def _struct(schema: str) -> str:
    """A single type is one column called ``value``."""
    if not isinstance(schema, str) or not schema.strip():
        raise ConfigError(
            f"a state variable needs a type such as 'long', or columns such as 'n long', found {schema!r}"
        )
    return schema if " " in schema.strip() and not schema.strip().startswith(("array<", "map<")) else f"value {schema}"


def _row(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _plain(row: Any) -> Any:
    if row is None:
        return None
    return row[0] if len(row) == 1 else tuple(row)
