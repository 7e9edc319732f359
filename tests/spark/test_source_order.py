"""A decided epoch that is done again has the slices that it was decided with, however the brokers list partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from kafka_jobs import decided, dying_after_the_decision, end, job, journal, repeat_epoch, run, values
from kafka_topics import WAIT_S, make_topic
from real_servers import Elsewhere
from tallystick.records import Parts, Vote
from tallystick.servers import Kafka as Broker
from tallystick.sinks import Kafka
from tallystick.sources import Kafka as KafkaSource
from tallystick.spark import coordinator
from tallystick.spark.prepare import prepare_slices

pytestmark = pytest.mark.spark

TOPICS = 4
"""Of one partition each, with names that are drawn: it is luck if they are listed in order."""
PER_TOPIC = 5


@pytest.fixture
def topics(kafka: Broker | Elsewhere) -> list[str]:
    """With other records in each."""
    made = [make_topic(kafka.address, partitions=1) for _ in range(TOPICS)]
    producer = Producer({"bootstrap.servers": kafka.address})
    for place, topic in enumerate(made):
        for number in range(PER_TOPIC):
            producer.produce(topic, str(place * PER_TOPIC + number), key=f"k{number}")
    assert producer.flush(WAIT_S) == 0
    return made


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Vote, ...]]:
    """The votes of every epoch that was computed, also those that were not decided anew."""
    found: list[tuple[Vote, ...]] = []

    def noted(*arguments: Any) -> Any:
        votes, seen = prepare_slices(*arguments)
        found.append(votes)
        return votes, seen

    monkeypatch.setattr(coordinator, "prepare_slices", noted)
    return found


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(lambda rows: rows.select("key", "value"), id="as they are"),
        pytest.param(lambda rows: rows.select("key", "value").coalesce(3), id="coalesce"),
        pytest.param(lambda rows: rows.select("key", "value").repartition(3), id="row by row to others"),
    ],
)
def test_a_replay_has_the_slices_that_were_decided(
    spark: SparkSession,
    kafka: Broker | Elsewhere,
    tmp_path: Path,
    topics: list[str],
    prepared: list[tuple[Vote, ...]],
    steps: Callable[[DataFrame], DataFrame],
) -> None:
    sink = Kafka(kafka.address, make_topic(kafka.address))
    settings = {"source": KafkaSource(kafka.address, topics), "steps": steps}
    run(job(tmp_path, sink, **settings), spark)
    repeat_epoch(tmp_path, 0)
    assert run(job(tmp_path, sink, **settings), spark) == ["verified"]
    before, after = ({vote.key: vote.fingerprint for vote in votes} for votes in prepared)
    assert len(before) > 1
    assert after == before
    assert sorted(values(tmp_path, sink), key=int) == [str(number) for number in range(TOPICS * PER_TOPIC)]


def test_one_slice_of_several_topics_expired(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, topics: list[str]
) -> None:
    """Which would stop for a person if the replay were sliced otherwise."""
    sink = Kafka(kafka.address, make_topic(kafka.address))
    settings = {"source": KafkaSource(kafka.address, topics), "steps": lambda rows: rows.select("key", "value")}
    with dying_after_the_decision(0):
        run(job(tmp_path, sink, **settings), spark)
    lost, *kept = decided(tmp_path, 0)
    for vote in kept:
        end(sink, vote, commit=True)
    end(sink, lost)
    assert run(job(tmp_path, sink, **settings), spark) == ["rewritten"]
    assert journal(tmp_path).records(0)[-1].replaces == Parts(slices=frozenset({lost.key}))
    assert sorted(values(tmp_path, sink), key=int) == [str(number) for number in range(TOPICS * PER_TOPIC)]
