"""How old a record is when a reader of committed records gets it, with each epoch at once after the last."""

import multiprocessing
import struct
import time
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_work import CONTESTANTS, PARTITIONS, broker, kafka_session, make_topic, start

import tallystick as ts

RATE = 5_000
WARM_UP_S = 12
MEASURE_S = 20
WARM_UP_ROUNDS = 3
"""Each contestant has run for two minutes then. Until about that the JVM's compiler takes a third of a core, more of it
for rows that go to Python: a job that runs for days is what is to be measured."""
ROUNDS = 3


def feed(address: str, topic: str, seconds: float) -> None:
    """Another process: every record carries the time at which it was handed to the producer."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1})
    started, sent = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        due = int((time.monotonic() - started) * RATE)
        for number in range(sent, due):
            producer.produce(topic, struct.pack("d", time.time()) + b"x" * 92, b"%d" % (number % 1000))
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(0.002)
    producer.flush()


def ages(address: str, topic: str, seconds: float, found: Connection) -> None:
    """Another process, so that the driver's interpreter is the job's alone, as it is where a job runs."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    begin = time.time() + WARM_UP_S
    seen: list[float] = []
    while time.time() < begin + seconds:
        for message in consumer.consume(5000, 0.01):
            now = time.time()
            if message.error() is None:
                born = struct.unpack("d", (message.value() or b"")[:8])[0]
                if born >= begin:
                    seen.append(now - born)
    consumer.close()
    found.send(seen)


def seen_by_a_reader(address: str, source: str, target: str, seconds: float) -> list[float]:
    """Feed one topic and read the other meanwhile. Returns the age of each record when it was read."""
    processes = multiprocessing.get_context("spawn")
    results, told = processes.Pipe(duplex=False)
    feeder = processes.Process(target=feed, args=(address, source, WARM_UP_S + seconds + 5))
    reader = processes.Process(target=ages, args=(address, target, seconds, told))
    feeder.start()
    reader.start()
    told.close()  # only the reader has it now: if it dies, nobody waits for ever
    seen: list[float] = results.recv()
    reader.join()
    feeder.join()
    return seen


def measure(folder: Path) -> dict[str, Any]:
    spark = kafka_session(PARTITIONS)
    collected: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    medians: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    with broker(folder) as address:
        for turn in range(WARM_UP_ROUNDS + ROUNDS):
            for contestant, found in collected.items():
                source, target = make_topic(address), make_topic(address)
                rows = ts.sources.Kafka(address, source).load(spark).select("key", "value")
                query = start(contestant, rows, address, target, folder / "ck", processingTime="0 seconds")
                seen = seen_by_a_reader(address, source, target, MEASURE_S)
                query.stop()
                if turn >= WARM_UP_ROUNDS:
                    found += seen
                    medians[contestant].append(quantiles(seen)["p50"])
    spark.stop()
    results = {contestant: quantiles(found) for contestant, found in collected.items()}
    ours, theirs = results["tallystick"], results["spark"]
    return {
        "work": f"committed latency at {RATE} records/s, trigger 0, {PARTITIONS} partitions",
        "seconds": results,
        "p50_of_rounds": medians,
        "ratios": {name: round(ours[name] / theirs[name], 3) for name in ("p50", "p99")},
    }


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: round(ordered[int(share * len(ordered))], 4) for name, share in at.items()}
    return {**found, "records": len(ordered)}
