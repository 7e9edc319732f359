"""Topics of Kafka, with Spark's own connector and settings that neither lose records nor show aborted ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.kafka.options import OPTIONS, unknown
from tallystick.kafka.options import REFUSED as REFUSED_BY_ALL
from tallystick.kafka.settings import PREFIX, KafkaSettings
from tallystick.records import Json, Mode
from tallystick.sources.base import RangeSource, SourceLog, need_whole
from tallystick.sources.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "fetchOffset.numRetries": r"[0-9]+",
        "fetchOffset.retryIntervalMs": r"[0-9]+",
        "groupIdPrefix": r".+",
        "kafkaConsumer.pollTimeoutMs": r"[0-9]+",
    }
)
"""The options of Spark's connector that a declaration may set, and what they look like."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "assign": "declare topics=; every partition of them is read",
        "endingOffsets": "a stream has no end; 'tallystick run --available-now' reads what is there and stops",
        "failOnDataLoss": "without it, records that are gone before they were read are passed over without a word",
        "includeHeaders": "declare headers=True instead",
        "maxOffsetsPerTrigger": "declare max_records_per_epoch= instead",
        "minPartitions": "declare min_partitions= instead",
        "startingOffsets": "declare starting= instead",
        "startingTimestamp": "declare starting= a datetime instead",
        "subscribe": "declare topics= instead",
        "subscribePattern": "declare pattern= instead",
    }
)

SAFE: Mapping[str, str] = MappingProxyType(
    {
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }
)
"""Set on every load, and no option changes them."""

FASTER: Mapping[str, str] = MappingProxyType(
    {
        "kafka.max.poll.records": "5000",
        "kafka.max.partition.fetch.bytes": str(4 << 20),
    }
)
"""Only about speed: with the defaults of Kafka's client a task waits for many small fetches. The user's win."""

SHOWN_PARTITIONS = 8
EARLIEST = -2
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Kafka(RangeSource):
    """Every record of some topics, from a point on: the columns of Spark's own source.

    They are ``key, value, topic, partition, offset, timestamp, timestampType``, and ``headers`` if asked for.
    ``topics`` is one name or several; ``pattern`` takes their place and is a regular expression (Java's) that also
    finds topics made later. Records of transactions are read once they are committed, never before, and never if they
    are aborted.

    ``starting`` counts for a new checkpoint only: ``"earliest"``, ``"latest"``, a datetime with a zone, or offsets for
    every partition, as ``{"pv": {0: 1000, 1: -2}}`` (-2 is the earliest, -1 the latest).

    ``options`` are those of Kafka's consumers, in Kafka's own names, SASL and TLS among them, as for the Kafka sink.
    Those that could lose, repeat or reorder records are refused.

    A job stops with an error if records are gone before it has read them: retention passed, or a topic was deleted.
    """

    facts = SourceFacts(
        "kafka",
        Mode.EXACTLY_ONCE,
        "Spark logs the offsets of an epoch before it reads them, and reads what is committed",
        "records stay until they are read: retention outlasts every pause of the job, topics are not compacted, and "
        "none is deleted and made anew",
    )
    jvm_parts = ("spark-kafka",)

    servers: str | Sequence[str]
    topics: str | Sequence[str] = ()
    pattern: str | None = field(default=None, kw_only=True)
    starting: str | datetime | Mapping[str, Mapping[int, int]] = field(default="earliest", kw_only=True)
    headers: bool = field(default=False, kw_only=True)
    max_records_per_epoch: int | None = field(default=None, kw_only=True)
    min_partitions: int | None = field(default=None, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        need_whole("kafka", max_records_per_epoch=self.max_records_per_epoch, min_partitions=self.min_partitions)
        if not isinstance(self.headers, bool):
            raise ConfigError(f"kafka: headers is {self.headers!r}, needed True or False")
        spark, kafka = _divided(self.options)
        settings = KafkaSettings.of(self.servers, kafka)
        _need_reading(settings)
        object.__setattr__(self, "servers", settings.servers)
        object.__setattr__(self, "topics", _topics(self.topics, self.pattern))
        object.__setattr__(self, "options", MappingProxyType({**spark, **settings.options}))
        _starting_options(self.starting, self.topics)
        object.__setattr__(self, "_settings", settings)

    @property
    def name(self) -> str:
        return f"kafka:{self.pattern if self.pattern is not None else ','.join(self.topics)}@{self.servers}"

    @property
    def settings(self) -> KafkaSettings:
        """Where the brokers are and how to talk to them, for any client."""
        found: KafkaSettings = self._settings  # type: ignore[attr-defined]  # set when it was declared
        return found

    def load(self, spark: SparkSession) -> DataFrame:
        """Asks the brokers for the topics first: what is wrong is told in seconds, and not after Spark's retries."""
        from tallystick.sources.kafka_check import check_brokers, need_connector

        need_connector(spark)
        check_brokers(spark, self.settings, self.topics)
        return spark.readStream.format("kafka").options(**self.spark_options()).load()

    def load_range(self, spark: SparkSession, start: Json, end: Json, log: SourceLog) -> DataFrame:
        """Partition after partition. Where the stream began stands in Spark's log: 'latest' was a place, too."""
        began = start if start is not None else next((json.loads(line) for line in log() if line.startswith("{")), {})
        known = {topic: {**dict.fromkeys(ends, EARLIEST), **began.get(topic, {})} for topic, ends in end.items()}
        first = {topic: {partition: known[topic][partition] for partition in ends} for topic, ends in end.items()}
        which = {topic: [int(partition) for partition in ends] for topic, ends in end.items()}
        told = {"assign": which, "startingOffsets": first, "endingOffsets": end}
        options = {**self._reading(), **{name: json.dumps(value) for name, value in told.items()}}
        return spark.read.format("kafka").options(**options).load()

    def spark_options(self) -> dict[str, str]:
        """What Spark's connector is told. Holds secrets."""
        which = {"subscribe": ",".join(self.topics)} if self.pattern is None else {"subscribePattern": self.pattern}
        limits = {"maxOffsetsPerTrigger": self.max_records_per_epoch, "minPartitions": self.min_partitions}
        return {
            **self._reading(),
            **which,
            **_starting_options(self.starting, self.topics),
            **{name: str(limit) for name, limit in limits.items() if limit is not None},
        }

    def _reading(self) -> dict[str, str]:
        own = {name: value for name, value in self.options.items() if name in SPARK_OPTIONS}
        headers = {"includeHeaders": str(self.headers).lower()}
        return {**FASTER, **self.settings.spark(), **own, **SAFE, **headers}

    def _describe(self, offset: Json) -> str | None:
        """Such as ``pv: 0=1000 1=980``."""
        if not isinstance(offset, dict) or not all(isinstance(partitions, dict) for partitions in offset.values()):
            return None
        return ", ".join(f"{topic}: {_partitions(partitions)}" for topic, partitions in sorted(offset.items()))

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag | None:
        """Offsets of Kafka, so that markers of transactions count, too. What is not committed yet does not wait."""
        from tallystick.sources.kafka_lag import unread

        if read is None and self.starting != "earliest":
            return None  # where it begins is found out when it does
        return Lag(records=unread(self.settings, self.topics, self.pattern, read or {}))


def _partitions(offsets: Mapping[str, int]) -> str:
    """Some topics have hundreds: the first ones stand for all."""
    ordered = sorted(offsets.items(), key=lambda entry: int(entry[0]))
    shown = [f"{partition}={offset}" for partition, offset in ordered[:SHOWN_PARTITIONS]]
    more = len(ordered) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown)


def _divided(options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Those of Spark's connector, and those of Kafka."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"kafka: options is a {type(options).__name__}, needed values by name")
    spark: dict[str, str] = {}
    kafka: dict[str, Any] = {}
    known = {name.lower(): name for name in SPARK_OPTIONS}  # Spark does not mind capitals
    refused = {name.lower(): why for name, why in REFUSED.items()}
    for name, value in options.items():
        if str(name).lower() in refused:
            raise ConfigError(f"kafka: the option {name} is refused: {refused[name.lower()]}")
        own = known.get(str(name).lower())
        if own is None:
            _need_known(str(name))
            kafka[name] = value
        elif re.fullmatch(SPARK_OPTIONS[own], str(value)) is None:
            raise ConfigError(f"kafka: {name} is {value!r}, needed {'text' if own == 'groupIdPrefix' else 'a number'}")
        else:
            spark[own] = str(value)
    return spark, kafka


def _need_known(name: str) -> None:
    bare = name.removeprefix(PREFIX)
    if bare in OPTIONS and OPTIONS[bare].role == "producer":
        raise ConfigError(f"kafka: {bare} is an option of producers, and a source only reads: leave it out here")
    readable = {entry: option for entry, option in OPTIONS.items() if option.role != "producer"}
    if bare not in OPTIONS and bare not in REFUSED_BY_ALL:
        raise unknown(bare, {**readable, **SPARK_OPTIONS})


def _need_reading(settings: KafkaSettings) -> None:
    if settings.options.get("isolation.level", "read_committed") != "read_committed":
        raise ConfigError(
            "kafka: isolation.level=read_uncommitted is refused: records of transactions that are aborted later would "
            "be read. leave it out"
        )


def _topics(topics: object, pattern: object) -> tuple[str, ...]:
    if pattern is not None:
        if topics not in ((), []):
            raise ConfigError("kafka: topics and pattern are both given: leave one of them out")
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"kafka: pattern is {pattern!r}, needed a regular expression such as 'views-.*'")
        return ()
    if not isinstance(topics, str | Sequence) or not topics:
        raise ConfigError(f"kafka: topics is {topics!r}, needed a name such as 'views', or several, or pattern=")
    found = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in found:
        if not isinstance(topic, str) or _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            raise ConfigError(
                f"kafka: {topic!r} is no topic, needed letters, digits, '.', '_' and '-' only; several topics are a "
                "list, and an expression is pattern="
            )
    if len(set(found)) < len(found):
        raise ConfigError(f"kafka: topics names one twice: {', '.join(found)}")
    return found


def _starting_options(starting: object, topics: Sequence[str]) -> dict[str, str]:
    if starting in ("earliest", "latest"):
        return {"startingOffsets": str(starting)}
    if isinstance(starting, datetime):
        if starting.tzinfo is None:
            raise ConfigError(f"kafka: starting is {starting}, which has no zone: needed such as {starting}+00:00")
        since_ms = int(starting.timestamp() * 1000)
        return {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if isinstance(starting, Mapping) and starting:
        return {"startingOffsets": json.dumps(_starting_offsets(starting, topics))}
    raise ConfigError(
        f"kafka: starting is {starting!r}, needed 'earliest', 'latest', a datetime with a zone, or offsets such as "
        "{'views': {0: 1000, 1: -2}}"
    )


def _starting_offsets(starting: Mapping[Any, Any], topics: Sequence[str]) -> dict[str, dict[str, int]]:
    if topics and set(starting) != set(topics):
        raise ConfigError(f"kafka: starting has offsets for {sorted(starting)}, needed them for {sorted(topics)}")
    made: dict[str, dict[str, int]] = {}
    for topic, partitions in starting.items():
        if not isinstance(partitions, Mapping) or not partitions:
            raise ConfigError(f"kafka: starting has {partitions!r} for {topic}, needed an offset per partition")
        for partition, offset in partitions.items():
            whole = isinstance(offset, int) and not isinstance(offset, bool) and offset >= -2
            if not str(partition).isdecimal() or not whole:
                raise ConfigError(
                    f"kafka: starting has {partition!r}: {offset!r} for {topic}, needed a partition and an offset, "
                    "where -2 is the earliest and -1 the latest"
                )
        made[str(topic)] = {str(partition): offset for partition, offset in partitions.items()}
    return made
