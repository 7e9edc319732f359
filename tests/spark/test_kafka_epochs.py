"""Epochs into Kafka on a real Spark and a real broker: several targets, state, orphans, names, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from kafka_jobs import as_text, job, journal, numbers, open_ones, prefix, repeat_epoch, run, values
from kafka_topics import WAIT_S, make_topic
from real_servers import Elsewhere, started
from tallystick.errors import PrepareError, SinkError
from tallystick.killpoints import ENVIRONMENT
from tallystick.records import Decision, Json, Outcome
from tallystick.servers import Kafka as Broker
from tallystick.sinks import Kafka
from tallystick.spark.jobfile import load_job

pytestmark = pytest.mark.spark


def test_two_topics_and_a_file_in_one_epoch(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver ends when the file and the first topic are committed, and the second topic is not."""
    one, two = (Kafka(kafka.address, make_topic(kafka.address)) for _ in range(2))
    files = ts.Output(ts.sinks.Files(tmp_path / "out", format="text"), "files", select=["value"])
    outputs = [ts.Output(one, "one"), ts.Output(two, "two", where="int(value) % 2 = 0"), files]
    commit_all = Kafka.commit_all

    def commit(sink: Kafka, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        if sink.topic == two.topic:
            raise SinkError("the driver died")
        return commit_all(sink, committables, recovering)

    def written() -> list[str]:
        return [line for path in (tmp_path / "out").glob("*.txt") for line in path.read_text().splitlines()]

    with monkeypatch.context() as patch:
        patch.setattr(Kafka, "commit_all", commit)
        with pytest.raises(SinkError, match="the driver died"):
            run(job(tmp_path, outputs, source=numbers(20)), spark)
    assert (len(written()), len(values(tmp_path, one)), len(values(tmp_path, two))) == (10, 10, 0)
    [record] = journal(tmp_path).records()
    assert record.decision is Decision.COMMIT
    assert {vote.sink for vote in record.votes} == {"one", "two", "files"}
    assert run(job(tmp_path, outputs, source=numbers(20)), spark) == ["verified", "written"]
    assert sorted(values(tmp_path, one), key=int) == as_text(range(20))
    assert sorted(values(tmp_path, two), key=int) == as_text(range(0, 20, 2))
    assert sorted(written(), key=int) == as_text(range(20))


def test_empty_epochs_open_no_transaction(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    sink = Kafka(kafka.address, make_topic(kafka.address))
    assert (
        run(job(tmp_path, sink, source=numbers(20), steps=lambda rows: rows.where("false")), spark) == ["written"] * 2
    )
    assert not sink.driver.transactions.activity(prefix(tmp_path, sink)), "not even a name was initialised"


def test_a_window_count_with_a_watermark_from_kafka_to_kafka(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    """Windows of ten seconds, one event per second and app. The last epoch is done again from its checkpoint."""
    events, counts = make_topic(kafka.address), Kafka(kafka.address, make_topic(kafka.address))
    producer = Producer({"bootstrap.servers": kafka.address})
    for second in range(100):
        for app in ("a", "b"):
            producer.produce(events, json.dumps({"app": app, "at": second}), app)
    assert producer.flush(WAIT_S) == 0

    def steps(rows: DataFrame) -> DataFrame:
        event = F.from_json(F.col("value").cast("string"), "app string, at long")
        return (
            rows.select(event.alias("e"))
            .select("e.app", F.timestamp_seconds("e.at").alias("at"))
            .withWatermark("at", "5 seconds")
            .groupBy(F.window("at", "10 seconds"), "app")
            .count()
            .selectExpr("app as key", "concat_ws(' ', app, unix_seconds(window.start), count) as value")
        )

    def declared() -> ts.Job:
        source = ts.sources.Kafka(kafka.address, events, max_records_per_epoch=100)
        return job(tmp_path, counts, source=source, steps=steps)

    assert len(run(declared(), spark)) >= 2
    found = values(tmp_path, counts)
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    repeat_epoch(tmp_path, last)
    assert run(declared(), spark) == ["verified"]
    closed = [f"{app} {start} 10" for start in range(0, 90, 10) for app in ("a", "b")]
    assert sorted(values(tmp_path, counts)) == sorted(found) == sorted(closed)


JOB = """
import tallystick as ts

job = ts.Job(
    "numbers",
    source=ts.sources.Collection([{{"key": "k", "value": str(n)}} for n in range(30)], per_epoch=10, partitions=2),
    sink=ts.sinks.Kafka({servers!r}, {topic!r}),
    checkpoint=ts.Checkpoint({checkpoint!r}, interval="0s", timeout="2m"),
)
if __name__ == "__main__":
    job.run(ts.session("orphans", "local[2]", fast_start=True), available_now=True)
"""


class Following:
    """A reader of committed records who reads all along, and when each record came."""

    def __init__(self, address: str, topic: str) -> None:
        self.came: dict[str, float] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": str(uuid.uuid4()), "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        self._consumer.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.came[(message.value() or b"").decode()] = time.monotonic()


def test_orphans_of_a_dead_job_are_ended_at_its_next_start(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    """Killed with two transactions written and nothing decided; their time-out would be two and a half minutes."""
    script, topic = tmp_path / "app.py", make_topic(kafka.address, 1)
    script.write_text(JOB.format(servers=kafka.address, topic=topic, checkpoint=str(tmp_path / "checkpoint")))
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, ENVIRONMENT: "before-decide@1"},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    declared = load_job(str(script))
    [output] = declared.outputs
    sink = output.sink
    assert isinstance(sink, Kafka)
    assert len(open_ones(tmp_path, sink)) == 2
    with Following(kafka.address, topic) as reader:
        producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 0})
        producer.produce(topic, b"behind", partition=0)
        assert producer.flush(WAIT_S) == 0
        time.sleep(1)
        assert "0" in reader.came
        assert "behind" not in reader.came, "a reader waits behind what is open"
        restarted = time.monotonic()
        assert run(declared, spark) == ["written", "written"]
        deadline = time.monotonic() + WAIT_S
        while len(reader.came) < 31 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(reader.came.keys() - {"behind"}, key=int) == as_text(range(30))
    assert reader.came["behind"] < min(reader.came[str(number)] for number in range(10, 30))
    waited_s = reader.came["behind"] - restarted
    print(f"a reader went on {waited_s:.1f} s after the restart of the job")
    assert waited_s < WAIT_S
    assert sorted(values(tmp_path, sink)) == sorted([*as_text(range(30)), "behind"])


def test_thirty_epochs_and_three_starts_take_few_names(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    """A worker that writes both slices of an epoch needs two names, and two others for the next epoch."""
    sink = Kafka(kafka.address, make_topic(kafka.address))
    for count in (100, 200, 300):
        source = numbers(count, per_epoch=10)
        assert run(job(tmp_path, sink, source=source), spark) == ["written"] * 10
    names = {name for name, *_ in sink.driver.transactions.activity(prefix(tmp_path, sink))}
    slots = Counter(name.rpartition(".")[0] for name in names)
    print(f"{len(names)} transactional ids of {len(slots)} workers for 60 transactions in 30 epochs")
    assert max(slots.values()) <= 4
    assert len(names) < 30
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(300))


def test_a_record_over_the_size_limit(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    """The job goes on when the cause is gone: here, a higher limit."""
    topic = make_topic(kafka.address, max_message_bytes="4000000")
    rows = [{"key": f"key-{number}", "value": "x" * (2_000_000 if number == 17 else 10)} for number in range(20)]

    def declared(**options: str) -> ts.Job:
        sink = Kafka(kafka.address, topic, options)
        return job(tmp_path, sink, source=ts.sources.Collection(rows, per_epoch=10, partitions=2))

    with pytest.raises(PrepareError, match=r"2000000 bytes with the key 'key-17' .* over the size .*max.request.size"):
        run(declared(), spark)
    sink = declared().outputs[0].sink
    assert isinstance(sink, Kafka)
    assert len(values(tmp_path, sink)) == 10, "nothing of the second epoch is published"
    assert not open_ones(tmp_path, sink)
    assert run(declared(**{"max.request.size": "3000000"}), spark) == ["written"]
    assert len(values(tmp_path, sink)) == 20


def test_brokers_that_do_not_answer(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.kafka.connection.BOOTSTRAP_TIMEOUT_MS", 1000)
    monkeypatch.setattr("tallystick.sinks.kafka.preflight.REACH_S", 1.0)
    with pytest.raises(SinkError, match=r"no answer from .*127.0.0.1:1.* needed a broker that is up"):
        run(job(tmp_path, Kafka("127.0.0.1:1", "pv")), spark)
    assert not journal(tmp_path).generations()


@pytest.fixture
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that does not make topics by itself."""
    with started(Broker(tmp_path_factory.mktemp("strict"), settings={"auto.create.topics.enable": "false"})) as broker:
        yield broker


def test_a_topic_that_is_deleted_while_the_job_runs(spark: SparkSession, strict: Broker, tmp_path: Path) -> None:
    topic = make_topic(strict.address)
    admin = AdminClient({"bootstrap.servers": strict.address})
    sink = Kafka(strict.address, topic)

    def delete(_: Any, __: Any) -> None:
        admin.delete_topics([topic])[topic].result(WAIT_S)

    started_at = time.monotonic()
    with pytest.raises(PrepareError, match=f"epoch 1 could not be prepared: kafka: topic {topic} is not there"):
        job(tmp_path, sink).run(spark, available_now=True, on_finished=delete)
    print(f"told {time.monotonic() - started_at:.1f} s after the start")
    with pytest.raises(SinkError, match=f"topic {topic} is not there.*kafka-topics.sh --create --topic {topic}"):
        run(job(tmp_path, sink), spark)
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(WAIT_S)
    assert run(job(tmp_path, sink), spark) == ["written"] * 3
    assert sorted(values(tmp_path, sink), key=int) == as_text(range(10, 40))
