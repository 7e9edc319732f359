"""Streams of Kinesis, by sequence number, through resharding."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json, Mode
from tallystick.sources.base import Source, SourceLog, need_whole
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_shards import in_words
from tallystick.sources.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MALFORMED = ("stop", "keep")
_registering = threading.Lock()


@dataclass(frozen=True)
class Kinesis(Source):
    """Every record of a stream, shard by shard. Columns: ``value, key, shard, sequence, sub, arrived``.

    ``starting`` counts for a new checkpoint only: ``"earliest"``, ``"latest"``, or a datetime with a zone. When shards
    are split or merged, the children are read after their parents. Records that the producer library packed into one
    are unpacked, and numbered by ``sub``. Throttling and expired iterators are waited for.

    Credentials are boto3's: from the environment, its files or the machine's role, on the driver's machine and on the
    workers. ``endpoint`` is for servers that speak the same interface.

    A job stops with an error if records are gone before it has read them. A record that says that it is packed, and
    cannot be unpacked, stops it too; with ``malformed="keep"`` it is a row as it is, with -1 as ``sub``.
    """

    facts = SourceFacts(
        "kinesis",
        Mode.EXACTLY_ONCE,
        "sequence numbers per shard are logged before an epoch runs; parents are read before children",
        "records stay until they are read: the retention of the stream outlasts every pause of the job",
    )

    stream: str
    region: str | None = field(default=None, kw_only=True)
    endpoint: str | None = field(default=None, kw_only=True)
    starting: str | datetime = field(default="earliest", kw_only=True)
    max_records_per_epoch: int = field(default=100_000, kw_only=True)
    malformed: str = field(default="stop", kw_only=True)

    def __post_init__(self) -> None:
        need_whole("kinesis", max_records_per_epoch=self.max_records_per_epoch)
        if not isinstance(self.stream, str) or re.fullmatch(r"[a-zA-Z0-9_.-]{1,128}", self.stream) is None:
            raise ConfigError(f"kinesis: stream is {self.stream!r}, needed the name of a stream")
        if self.malformed not in MALFORMED:
            raise ConfigError(f"kinesis: malformed is {self.malformed!r}, needed one of {', '.join(MALFORMED)}")
        self._starting()

    @property
    def name(self) -> str:
        return f"kinesis:{self.stream}"

    def load(self, spark: SparkSession) -> DataFrame:
        """Asks for the shards first: a missing stream and wrong credentials are told before the query starts."""
        from tallystick.sources.kinesis_reader import Stream, data_source

        client = KinesisClient(self.stream, self.region, self.endpoint)
        client.shards()
        registered = "tallystick_kinesis_" + re.sub(r"\W", "_", self.stream)
        keep = self.malformed == "keep"
        source = data_source(registered, Stream(client, self._starting(), self.max_records_per_epoch, keep))
        with _registering:
            spark.dataSource.register(source)
            return spark.readStream.format(registered).load()

    def _describe(self, offset: Json) -> str | None:
        return in_words(offset["shards"]) if isinstance(offset, dict) and "shards" in offset else None

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag:
        """How long the oldest unread record has been there: Kinesis does not count records. One call per shard."""
        from tallystick.sources.kinesis_lag import behind_ms

        client = KinesisClient(self.stream, self.region, self.endpoint)
        return Lag(behind_ms=behind_ms(client, self._starting(), None if read is None else read["shards"]))

    def _starting(self) -> str:
        if self.starting in ("earliest", "latest"):
            return str(self.starting)
        if isinstance(self.starting, datetime) and self.starting.tzinfo is not None:
            return str(self.starting.timestamp())
        raise ConfigError(
            f"kinesis: starting is {self.starting!r}, needed 'earliest', 'latest' or a datetime with a zone"
        )
