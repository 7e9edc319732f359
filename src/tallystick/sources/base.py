"""The source contract. `collection.py` is the smallest source that keeps all of it: read that next.

A source is a value that is declared on the driver. Exactly-once rests on one promise: *the same range of offsets
always gives the same rows*. Spark logs the range of an epoch before it runs (the barrier); whoever repeats the epoch
asks for the same range again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Source(ABC):
    """Where rows come from. Immutable once declared; a wrong declaration is a `ConfigError` at once."""

    facts: ClassVar[SourceFacts]

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it, in checkpoints and plans: no secrets in it."""

    @abstractmethod
    def load(self, spark: SparkSession) -> DataFrame:
        """Driver, before the first epoch: a streaming DataFrame. May be called again; each call gives a new one.

        What only Spark can check (a schema in words, a path) is a `ConfigError` here.
        """

    def describe_offset(self, offset: Json) -> str:
        """An offset in few words. Takes it as Spark logs it: JSON text, or the value that was parsed from it.

        For people only: what is not understood is given back as it stands.
        """
        value = json.loads(offset) if isinstance(offset, str) else offset
        return self._describe(value) or json.dumps(value)

    @abstractmethod
    def _describe(self, offset: Json) -> str | None:
        """The words for one parsed offset; None if it is not one of this source."""


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
