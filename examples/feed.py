"""Make topics, send numbered log lines, and read what came out.

    python examples/feed.py make lines app-pv --partitions 2
    python examples/feed.py send lines --count 100000 --rate 5000
    python examples/feed.py read app-pv

The same seed and number always give the same line, so that what a job has counted can be checked.
"""

import argparse
import os
import random
import time
from datetime import datetime, timedelta, timezone

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
PER_SECOND = 100
WAIT_S = 30.0


def log_line(number: int, seed: int = 0) -> str:
    """Such as ``42 2026-01-01T00:00:00.420Z app_id=app3 /page/5 200``: a hundred a second, up to 2 s out of order."""
    dice = random.Random(seed * 1_000_003 + number)
    at = BEGIN + timedelta(seconds=number / PER_SECOND + 2 * dice.random())
    app, page, status = 1 + dice.randrange(5), dice.randrange(20), dice.choice((200, 200, 200, 404, 500))
    return f"{number} {at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z app_id=app{app} /page/{page} {status}"


def make(topics: list[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": KAFKA})
    made = admin.create_topics([NewTopic(topic, num_partitions=partitions) for topic in topics])
    for future in made.values():
        future.result(WAIT_S)


def send(topic: str, first: int, count: int, rate: int, seed: int) -> None:
    """Dealt out over the partitions. ``rate`` lines a second; 0 is as fast as it goes."""
    quiet = {"log_level": 3}  # a broker that has just started makes the client wait, and the client says so
    producer = Producer({"bootstrap.servers": KAFKA, "enable.idempotence": True, **quiet})
    partitions = len(producer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)
    began_s = time.monotonic()
    for sent, number in enumerate(range(first, first + count)):
        if rate and sent % 100 == 0:
            time.sleep(max(0.0, began_s + sent / rate - time.monotonic()))
        if number % 10_000 == 0:
            producer.flush(WAIT_S)  # the client keeps a bounded number of lines that are not acknowledged yet
        producer.produce(topic, value=log_line(number, seed), partition=number % partitions)
    left = producer.flush(WAIT_S)
    if left:
        raise SystemExit(f"{left} lines were not acknowledged: does a broker run at {KAFKA}?")


def read(topic: str) -> list[tuple[str, str]]:
    """Key and value of all records that are committed now."""
    reader = Consumer(
        {
            "bootstrap.servers": KAFKA,
            "group.id": "examples-feed",
            "isolation.level": "read_committed",  # without it, records of aborted transactions are shown too
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = sorted(reader.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)
    reader.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[tuple[str, str]] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        for message in reader.consume(1000, WAIT_S):
            error = message.error()
            if error is None:
                found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
            else:
                raise SystemExit(f"{topic} cannot be read: {error.str()}")
    reader.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make", help="make topics")
    making.add_argument("topics", nargs="+")
    making.add_argument("--partitions", type=int, default=2)
    sending = verbs.add_parser("send", help="send log lines")
    sending.add_argument("topic")
    sending.add_argument("--first", type=int, default=0, help="the number of the first line")
    sending.add_argument("--count", type=int, default=100_000)
    sending.add_argument("--rate", type=int, default=0, help="lines a second; 0: as fast as it goes")
    sending.add_argument("--seed", type=int, default=0)
    reading = verbs.add_parser("read", help="print what is committed")
    reading.add_argument("topic")
    typed = parser.parse_args()
    if typed.verb == "make":
        make(typed.topics, typed.partitions)
    elif typed.verb == "send":
        send(typed.topic, typed.first, typed.count, typed.rate, typed.seed)
    else:
        for key, value in read(typed.topic):
            print(key, value, sep="\t")


if __name__ == "__main__":
    main()
