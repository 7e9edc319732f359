"""Records per second from topic to topic: exactly-once against Spark's own at-least-once sink, equally set up."""

from pathlib import Path
from typing import Any

from kafka_work import PARTITIONS, broker, epochs_of, fill, finish, kafka_session, make_topic, start
from machine import spread

import tallystick as ts

RECORDS = 4_000_000
PER_EPOCH = 1_000_000
ROUNDS = 3
CONTESTANTS = ("spark", "tallystick", "tallystick-objects")


def measure(folder: Path) -> dict[str, Any]:
    spark = kafka_session(PARTITIONS)
    rates: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    with broker(folder) as address:
        source = make_topic(address)
        fill(address, source, RECORDS)
        for turn in range(ROUNDS + 1):
            for contestant, collected in rates.items():
                rows = ts.sources.Kafka(address, source, max_records_per_epoch=PER_EPOCH).load(spark)
                target = make_topic(address)
                query = start(
                    contestant, rows.select("key", "value"), address, target, folder / "ck", availableNow=True
                )
                finish(query, 300)
                done = epochs_of(query)
                seconds = sum(epoch["durationMs"]["triggerExecution"] for epoch in done) / 1000
                if turn > 0:  # the first turn warms the JVM up
                    collected.append(sum(epoch["numInputRows"] for epoch in done) / seconds)
    spark.stop()
    results = {contestant: spread(values) for contestant, values in rates.items()}
    theirs = results["spark"]["median"]
    return {
        "work": f"{RECORDS} records of 100 bytes, {PARTITIONS} partitions, epochs of {PER_EPOCH}, lz4, one broker",
        "records_per_s": {name: {key: round(value) for key, value in one.items()} for name, one in results.items()},
        "ratios": {name: round(one["median"] / theirs, 3) for name, one in results.items() if name != "spark"},
    }
