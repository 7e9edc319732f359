"""The source contract. `collection.py` is the smallest source that keeps all of it: read that next.

A source is a value that is declared on the driver. Exactly-once rests on one promise: *the same range of offsets
always gives the same rows*. Spark logs the range of an epoch before it runs (the barrier); whoever repeats the epoch
asks for the same range again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json
from tallystick.sources.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SourceLog: TypeAlias = Callable[[], Sequence[str]]
"""Gives the lines of the log that Spark keeps in the checkpoint for one source alone, oldest first; not every source
has one."""


class Source(ABC):
    """Where rows come from. Immutable once declared; a wrong declaration is a `ConfigError` at once."""

    facts: ClassVar[SourceFacts]
    jvm_parts: ClassVar[tuple[str, ...]] = ()
    """Connectors that Spark does not bring along, by their configuration in ``jvm/ivy.xml``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it, in checkpoints and plans: no secrets in it."""

    @abstractmethod
    def load(self, spark: SparkSession) -> DataFrame:
        """Driver, before the first epoch: a streaming DataFrame. May be called again; each call gives a new one.

        What only Spark can check (a schema in words, a path) is a `ConfigError` here.
        """

    def release(self) -> None:
        """Driver, when the job is over: end what `load` started beside it. Harmless if there is nothing, or again."""

    def describe_offset(self, offset: Json) -> str:
        """An offset in few words. Takes it as Spark logs it: JSON text, or the value that was parsed from it.

        For people only: what is not understood is given back as it stands.
        """
        value = json.loads(offset) if isinstance(offset, str) else offset
        return self._describe(value) or json.dumps(value)

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag | None:
        """Anywhere, at any time, also while no job runs: what there is after an offset, as Spark logs it.

        Asks the system itself, beside the job: cheap, changes nothing there, and may raise. ``read`` is None if nothing
        was read yet. ``log`` is as in `RangeSource.load_range`. ``spark`` is for what only Spark can list; there may be
        none. None if a source cannot tell.
        """
        return None

    @abstractmethod
    def _describe(self, offset: Json) -> str | None:
        """The words for one parsed offset; None if it is not one of this source."""


class RangeSource(Source):
    """A source whose rows between two offsets can also be read at once, outside the stream: `state.Broadcast`."""

    @abstractmethod
    def load_range(self, spark: SparkSession, start: Json, end: Json, log: SourceLog) -> DataFrame:
        """Driver, inside an epoch: a batch DataFrame of the rows after ``start`` and up to ``end``, in their order.

        Offsets are as Spark logs them; a ``start`` of None is where the stream began.
        """


def need_positive(source: str, **settings: float | None) -> None:
    """Every setting that is given must be above zero."""
    for setting, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{source}: {setting} is {value}, needed a number above 0, or nothing for no limit")


def need_whole(source: str, **settings: object) -> None:
    """Every setting that is given must be a whole number above zero."""
    for setting, value in settings.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{source}: {setting} is {value!r}, needed a whole number")
        need_positive(source, **{setting: value})
