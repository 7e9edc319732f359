"""Transactions that Kafka rolled back after they were decided: exactly the missing slices are written again.

A broker aborts what nobody ended in time. Most tests here end the transaction themselves, as the broker's time-out does
(EndTxn, abort) or as a producer does that starts the name anew; one waits for a real time-out after a real kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from kafka_jobs import (
    as_text,
    decided,
    dying_after_the_decision,
    end,
    job,
    journal,
    numbers,
    open_ones,
    repeat_epoch,
    run,
    values,
)
from kafka_topics import WAIT_S, make_topic, read_topic
from real_servers import Elsewhere
from tallystick.errors import ConflictError
from tallystick.killpoints import ENVIRONMENT
from tallystick.protocol import NOTHING
from tallystick.records import Parts, Resolution, Vote
from tallystick.servers import Kafka as Broker
from tallystick.sinks import Kafka
from tallystick.spark import slicing
from tallystick.spark.jobfile import load_job

pytestmark = pytest.mark.spark

TWO_EPOCHS = {"source": numbers(20)}


def start_anew(sink: Kafka, vote: Vote) -> None:
    """As a producer does that comes to the name too early: what is open under it is aborted."""
    deadline = time.monotonic() + WAIT_S
    while sink.driver.transactions.initialise(vote.committable["name"], 60_000) != "":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_all_slices_of_an_epoch_expired(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    sink = Kafka(kafka.address, make_topic(kafka.address))
    with dying_after_the_decision(1):
        run(job(tmp_path, sink, **TWO_EPOCHS), spark)
    votes = decided(tmp_path, 1)
    assert len(votes) == 2
    for vote in votes:
        end(sink, vote)
    assert run(job(tmp_path, sink, **TWO_EPOCHS), spark) == ["rewritten"]
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(20))
    assert journal(tmp_path).records(1)[-1].replaces == Parts(sinks=frozenset({"kafka"}))
    assert not open_ones(tmp_path, sink)


@pytest.mark.parametrize("how", [end, start_anew], ids=["aborted", "name started anew"])
def test_one_slice_expired_and_the_other_was_committed(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, how: Any
) -> None:
    """The committed one is started anew as well: Kafka then calls both fenced, and only their tokens differ."""
    sink = Kafka(kafka.address, make_topic(kafka.address))
    with dying_after_the_decision(1):
        run(job(tmp_path, sink, **TWO_EPOCHS), spark)
    lost, kept = decided(tmp_path, 1)
    end(sink, kept, commit=True)
    how(sink, lost)
    if how is start_anew:
        start_anew(sink, kept)
    before = len(values(tmp_path, sink))
    assert before == 15
    assert run(job(tmp_path, sink, **TWO_EPOCHS), spark) == ["rewritten"]
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(20))
    record = journal(tmp_path).records(1)[-1]
    assert record.replaces == Parts(slices=frozenset({lost.key}))
    assert [(vote.key, vote.fingerprint) for vote in record.votes] == [(lost.key, lost.fingerprint)]


@pytest.mark.parametrize("then", [1, 2, 9])
def test_some_slices_of_a_task_expired_and_others_were_committed(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: int
) -> None:
    """Slices that share tasks are the same ones in a replay that shares them otherwise."""
    settings = {"steps": lambda rows: rows.repartition(6, "value"), **TWO_EPOCHS}
    sink = Kafka(kafka.address, make_topic(kafka.address))
    with dying_after_the_decision(1):
        run(job(tmp_path, sink, **settings), spark)
    votes = decided(tmp_path, 1)
    assert len(votes) > 2, "more slices than tasks"
    kept, lost = votes[1::2], votes[::2]
    for vote in votes:
        end(sink, vote, commit=vote in kept)
    monkeypatch.setattr(slicing, "slots_of", lambda _: then)
    assert run(job(tmp_path, sink, **settings), spark) == ["rewritten"]
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(20))
    record = journal(tmp_path).records(1)[-1]
    assert record.replaces == Parts(slices=frozenset(vote.key for vote in lost))
    assert [(vote.key, vote.fingerprint) for vote in record.votes] == [(vote.key, vote.fingerprint) for vote in lost]
    assert not open_ones(tmp_path, sink)


def test_committed_and_started_anew_is_not_written_again(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    sink = Kafka(kafka.address, make_topic(kafka.address))
    run(job(tmp_path, sink, **TWO_EPOCHS), spark)
    repeat_epoch(tmp_path, 1)
    for vote in decided(tmp_path, 1):
        start_anew(sink, vote)
    assert run(job(tmp_path, sink, **TWO_EPOCHS), spark) == ["verified"]
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(20))
    assert journal(tmp_path).records(1)[-1].replaces == NOTHING


def test_a_job_that_is_not_deterministic_stops_for_a_person(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    def steps(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("key", "concat(value, ' ', uuid()) as value")

    sink = Kafka(kafka.address, make_topic(kafka.address))
    with dying_after_the_decision(1):
        run(job(tmp_path, sink, steps=steps, **TWO_EPOCHS), spark)
    lost, kept = decided(tmp_path, 1)
    end(sink, lost)
    with pytest.raises(ConflictError, match=r"epoch 1: slice kafka/0 expired.*transactions resolve CHECKPOINT 1 --"):
        run(job(tmp_path, sink, steps=steps, **TWO_EPOCHS), spark)
    assert len(values(tmp_path, sink)) == 15, "what could be committed is; nothing that differs is published"
    assert not open_ones(tmp_path, sink)
    journal(tmp_path).resolve(1, Resolution.REWRITE)
    assert run(job(tmp_path, sink, steps=steps, **TWO_EPOCHS), spark) == ["rewritten"]
    found = sorted((value.split()[0] for value in values(tmp_path, sink)), key=int)
    assert found == as_text(range(20))
    assert kept.committable["name"] != lost.committable["name"]


TIMEOUT_S = 15
JOB = """
import sys

import tallystick as ts
from tallystick.sinks.kafka import timeouts

timeouts.MARGIN_S = 0.0  # so that a real time-out can be waited for
job = ts.Job(
    "numbers",
    source=ts.sources.Collection([{{"key": str(n % 5), "value": str(n)}} for n in range(30)], per_epoch=10),
    sink=ts.sinks.Kafka({servers!r}, {topic!r}, {{"transaction.timeout.ms": {timeout_s} * 1000}}),
    checkpoint=ts.Checkpoint({checkpoint!r}, interval="0s", timeout="{timeout_s}s"),
)
if __name__ == "__main__":
    job.run(ts.session("expiry", "local[2]", fast_start=True), available_now=True)
"""


def killed(script: Path, point: str) -> None:
    """Run a job in a process of its own until it is killed at this point."""
    environment = {**os.environ, ENVIRONMENT: point}
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def readable_after_s(address: str, topic: str) -> float:
    """How long a record that is written now stays behind what is open before it."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce(topic, value=b"plain", partition=0)
    assert producer.flush(WAIT_S) == 0
    started = time.monotonic()
    while not any(record.value == b"plain" for record in read_topic(address, topic)):
        assert time.monotonic() < started + WAIT_S + TIMEOUT_S
        time.sleep(0.1)
    return time.monotonic() - started


def test_a_killed_job_a_real_time_out_and_a_late_restart(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.sinks.kafka.timeouts.MARGIN_S", 0.0)
    script, topic = tmp_path / "app.py", make_topic(kafka.address, 1)
    script.write_text(
        JOB.format(servers=kafka.address, topic=topic, checkpoint=str(tmp_path / "checkpoint"), timeout_s=TIMEOUT_S)
    )
    killed(script, "after-decide@1")
    waited_s = readable_after_s(kafka.address, topic)
    declared = load_job(str(script))
    [output] = declared.outputs
    assert isinstance(output.sink, Kafka)
    assert not open_ones(tmp_path, output.sink), "the broker has ended them"
    assert run(declared, spark) == ["rewritten", "written"]
    found = [value for value in values(tmp_path, output.sink) if value != "plain"]
    assert sorted(found, key=int) == as_text(range(30))
    assert journal(tmp_path).records(1)[-1].replaces == Parts(sinks=frozenset({"kafka"}))
    print(f"time-out {TIMEOUT_S} s: readers waited {waited_s:.1f} s; lost 0, repeated 0 of 30")
