"""The Kafka source as declared: what is refused and when, what Spark is told, how offsets are shown. No Spark runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import datetime, timezone
from typing import Any

import pytest

from tallystick import kafka_jars
from tallystick.errors import ConfigError
from tallystick.jvm import resolve
from tallystick.kafka.options import OPTIONS
from tallystick.records import Mode
from tallystick.sources import Collection, Kafka
from tallystick.sources.kafka import REFUSED, SAFE
from tallystick.spark.parts import jar_of_this_machine
from tallystick.spark.session import JARS, JAVA_OPTIONS, PACKAGES, settings_for

SERVERS = "one:9092,two:9092"


def declared(**settings: Any) -> Kafka:
    return Kafka(SERVERS, "pv", **settings)


def optional(**options: Any) -> Kafka:
    return declared(options={name.replace("_", "."): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Kafka("one", "pv"), "'one' is no server"),
        (lambda: Kafka(SERVERS), r"topics is \(\), needed a name"),
        (lambda: Kafka(SERVERS, ""), "topics is '', needed a name"),
        (lambda: Kafka(SERVERS, "a,b"), "'a,b' is no topic, .*several topics are a list"),
        (lambda: Kafka(SERVERS, "views-.*"), "an expression is pattern="),
        (lambda: Kafka(SERVERS, ["a", "a"]), "names one twice"),
        (lambda: Kafka(SERVERS, [".."]), "'..' is no topic"),
        (lambda: Kafka(SERVERS, "a", pattern="b"), "topics and pattern are both given"),
        (lambda: Kafka(SERVERS, pattern=""), "pattern is '', needed"),
        (lambda: declared(starting="first"), "starting is 'first', needed 'earliest', 'latest'"),
        (lambda: declared(starting=datetime(2024, 1, 1)), r"has no zone: needed such as 2024-01-01 00:00:00\+00:00"),
        (lambda: declared(starting={"other": {0: 1}}), r"has offsets for \['other'\], needed them for \['pv'\]"),
        (lambda: declared(starting={"pv": {}}), "needed an offset per partition"),
        (lambda: declared(starting={"pv": {0: -3}}), "where -2 is the earliest and -1 the latest"),
        (lambda: declared(starting={"pv": {0: "1"}}), "needed a partition and an offset"),
        (lambda: declared(starting={"pv": {"x": 1}}), "needed a partition and an offset"),
        (lambda: declared(max_records_per_epoch=0), "max_records_per_epoch is 0"),
        (lambda: declared(min_partitions=1.5), "min_partitions is 1.5"),
        (lambda: declared(headers="yes"), "headers is 'yes'"),
        (lambda: declared(options=["x"]), "options is a list"),
        (lambda: optional(max_pol_records=1), "no option 'max.pol.records'. did you mean max.poll.records"),
        (lambda: optional(linger_ms=1), "linger.ms is an option of producers"),
        (lambda: optional(group_id="g"), "group.id is refused: offsets are kept in the checkpoint"),
        (lambda: optional(auto_offset_reset="latest"), "it would pass over lost records"),
        (lambda: optional(isolation_level="read_uncommitted"), "read_uncommitted is refused"),
        (lambda: declared(options={"fetchOffset.numRetries": "x"}), "fetchOffset.numRetries is 'x', needed a number"),
        (lambda: declared(options={"fetchOffset.numRetry": 1}), "did you mean fetchOffset.numRetries"),
        (lambda: declared(options={"failondataloss": "false"}), "failondataloss is refused: .*without a word"),
    ],
)
def test_a_wrong_kafka_source_is_refused_when_it_is_declared(wrong: Callable[[], Kafka], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong()


@pytest.mark.parametrize("option", REFUSED)
def test_what_has_a_setting_of_its_own_is_refused_as_an_option(option: str) -> None:
    with pytest.raises(ConfigError, match=f"the option {option} is refused: "):
        declared(options={option: "x"})


def test_what_spark_is_told() -> None:
    source = Kafka(
        ["one:9092", "two:9092"],
        ["pv", "clicks"],
        max_records_per_epoch=1000,
        min_partitions=8,
        headers=True,
        options={"kafka.fetch.min.bytes": 5, "groupidprefix": "mine", "isolation.level": "read_committed"},
    )
    assert source.spark_options() == {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.fetch.min.bytes": "5",
        "kafka.isolation.level": "read_committed",
        "kafka.max.poll.records": "5000",
        "kafka.max.partition.fetch.bytes": "4194304",
        "groupIdPrefix": "mine",
        "failOnDataLoss": "true",
        "subscribe": "pv,clicks",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
        "minPartitions": "8",
        "includeHeaders": "true",
    }


def test_no_option_that_is_known_can_undo_what_is_safe() -> None:
    for option in OPTIONS.values():
        if option.role == "consumer" and option.name != "isolation.level":
            value = "true" if option.kind == "switch" else "1"
            assert SAFE.items() <= optional(**{option.name: value}).spark_options().items()


def test_the_user_knows_better_about_speed() -> None:
    assert optional(max_poll_records=7).spark_options()["kafka.max.poll.records"] == "7"


@pytest.mark.parametrize(
    ("starting", "told"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ({"pv": {0: 1000, 1: -2}}, {"startingOffsets": '{"pv": {"0": 1000, "1": -2}}'}),
        (
            datetime(2024, 1, 1, tzinfo=timezone.utc),
            {"startingTimestamp": "1704067200000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_where_a_new_job_begins(starting: Any, told: dict[str, str]) -> None:
    assert told.items() <= declared(starting=starting).spark_options().items()


def test_a_pattern() -> None:
    source = Kafka(SERVERS, pattern="views-.*")
    assert source.spark_options()["subscribePattern"] == "views-.*"
    assert "subscribe" not in source.spark_options()
    assert source.name == "kafka:views-.*@one:9092,two:9092"


def test_a_declared_source_shows_no_secrets_and_does_not_change() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    source = declared(options={**options, "sasl.username": "alice", "sasl.password": "hush"})
    assert source.name == "kafka:pv@one:9092,two:9092"
    assert "hush" not in f"{source!r} {source} {source.name} {source.settings}"
    assert 'password="hush"' in source.spark_options()["kafka.sasl.jaas.config"]
    with pytest.raises(FrozenInstanceError):
        source.headers = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        source.options["sasl.password"] = "x"  # type: ignore[index]


def test_what_it_promises() -> None:
    assert Kafka.facts.guarantee is Mode.EXACTLY_ONCE
    assert "retention" in Kafka.facts.conditions
    assert Kafka.jvm_parts == ("spark-kafka",)
    assert Collection.jvm_parts == ()


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ('{"pv":{"1":980,"0":1000}}', "pv: 0=1000 1=980"),
        ({"pv": {"0": 1}, "clicks": {"10": 5, "9": 4}}, "clicks: 9=4 10=5, pv: 0=1"),
        ({"pv": {str(number): number for number in range(100)}}, "pv: 0=0 1=1 2=2 3=3 4=4 5=5 6=6 7=7 and 92 more"),
        ({"logOffset": 3}, '{"logOffset": 3}'),
    ],
)
def test_offsets_in_words(offset: Any, words: str) -> None:
    assert declared().describe_offset(offset) == words


# --- The connector on the session


def test_the_jars_of_parts_are_joined_with_those_of_the_user() -> None:
    ours = [str(jar) for jar in resolve("spark-kafka")]
    settings = settings_for("local", {JARS: "mine.jar"}, True, True, ["spark-kafka", "spark-kafka"])
    assert settings[JARS].split(",") == ["mine.jar", *ours, jar_of_this_machine()]
    assert kafka_jars() == ",".join(ours)
    assert settings[JAVA_OPTIONS] == settings_for("local", {}, True, True)[JAVA_OPTIONS]
    assert settings_for("local", {}, True, True)[JARS] == jar_of_this_machine()
    assert JARS not in settings_for("spark://master:7077", {}, True, True)


@pytest.mark.parametrize(
    "brought", [{PACKAGES: "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"}, {JARS: kafka_jars()}]
)
def test_a_connector_that_the_user_brings_is_not_brought_twice(brought: dict[str, str]) -> None:
    settings = settings_for("spark://master:7077", brought, False, True, ["spark-kafka"])
    assert settings.get(JARS) == brought.get(JARS)
