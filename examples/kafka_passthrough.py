"""Kafka -> Kafka, record by record: what is in one topic appears in another, once.

    tallystick run examples/kafka_passthrough.py

Key, value and headers go through as they are, and a key lands in the partition where Kafka's own clients would put it.
"""

import os
from pathlib import Path

import tallystick as ts

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
LINES = os.environ.get("LINES", "lines")
COPY = os.environ.get("COPY", "lines-copy")
WORK = Path(os.environ.get("WORK", "work"))

job = ts.Job(
    "passthrough",
    # Spark's own connector, told to read committed records only and never to pass over lost ones.
    source=ts.sources.Kafka(KAFKA, LINES, headers=True, max_records_per_epoch=1_000_000),
    # The source also has topic, partition, offset and timestamp. With 'partition' among them every record would keep
    # its partition; without it the key decides.
    steps=lambda rows: rows.select("key", "value", "headers"),
    sink=ts.sinks.Kafka(KAFKA, COPY, options={"compression.type": "lz4"}),
    checkpoint=ts.Checkpoint(WORK / "passthrough", interval="1s"),
    restart=ts.FixedDelay(attempts=10, delay="5s"),
)
