"""One Kafka to Kafka job under faults: its topics, its runs, and what two readers found at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Producer
from kafka_pipeline import PARTITIONS, Plan, expected, source_records
from kafka_reader import FollowingReader, out_of_order
from killed_job import KilledJob

from kafka_topics import Read, make_topic, read_topic, wait_for_markers
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.prover import Tally, tally
from tallystick.sinks.kafka.names import prefix_of


@dataclass(frozen=True)
class Findings:
    """``aborted``: records that were written and never became visible; ``names``: transactional ids ever used."""

    tally: Tally
    same_for_both_readers: bool
    out_of_order: tuple[str, ...]
    aborted: int
    still_open: tuple[str, ...]
    names: int

    def row(self, fault: str, runs: int, kills: int) -> str:
        counted = self.tally
        return (
            f"{fault:<44} runs {runs:>2}  kills {kills:>2}  sent {counted.expected:>5}  lost {counted.lost:>4}  "
            f"repeated {counted.repeated:>4}  phantom {counted.phantom:>2}  rolled back {self.aborted:>4}  "
            f"ids {self.names:>2}"
        )


class Campaign(KilledJob):
    """``address`` is the broker's own, for the readers; ``plan.servers`` is what the job connects to."""

    pipeline = "kafka_pipeline.py"

    def __init__(self, address: str, folder: Path, epochs: int, servers: str | None = None, **plan: object) -> None:
        super().__init__(folder)
        self.address = address
        (folder / "marks").mkdir()
        source, target = make_topic(address, PARTITIONS), make_topic(address, PARTITIONS)
        self.plan = replace(Plan(str(folder), servers or address, source, target, epochs), **plan)  # type: ignore[arg-type]
        self._fill()

    def arguments(self) -> list[str]:
        return [self.plan.to_json()]

    def _fill(self) -> None:
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True})
        for record in source_records(self.plan.epochs):
            producer.produce(self.plan.source, record.value, record.key, record.partition)
        assert producer.flush(30) == 0

    @contextmanager
    def follower(self) -> Iterator[FollowingReader]:
        with FollowingReader(self.address, self.plan.target, PARTITIONS) as reader:
            yield reader

    def epochs_done(self) -> int:
        """How many epochs Spark has noted as done."""
        commits = self.folder / "checkpoint" / "commits"
        return sum(path.name.isdigit() for path in commits.iterdir()) if commits.exists() else 0

    def prefix(self) -> str:
        return prefix_of("tallystick", self.job_id(), self.plan.target)

    def findings(self, follower: FollowingReader) -> Findings:
        """When the job has ended: what both readers saw, and what is left at the brokers."""
        asked = Transactions(KafkaSettings.of(self.address))
        try:
            wait_for_markers(self.address, self.prefix(), asked)
            still_open = tuple(found.name for found in asked.open(self.prefix()))
            names = {name for name, *_ in asked.activity(self.prefix())}
        finally:
            asked.close()
        at_the_end = _by_partition(read_topic(self.address, self.plan.target))
        everything = read_topic(self.address, self.plan.target, "read_uncommitted")
        count = sum(map(len, at_the_end.values()))
        follower.await_count(count)
        assert follower.failure is None, follower.failure
        all_along = follower.by_partition()
        delivered = [(_text(read.key), _text(read.value)) for reads in all_along.values() for read in reads]
        wrong = [text for reads in all_along.values() for text in out_of_order(reads)] if not self.plan.counts else []
        return Findings(
            tally(expected(self.plan), delivered),
            all_along == {number: at_the_end.get(number, []) for number in all_along},
            tuple(wrong),
            len(everything) - count,
            still_open,
            len(names),
        )


def assert_exactly_once(found: Findings) -> None:
    assert found.tally.exact, found.tally
    assert found.tally.expected > 0
    assert found.same_for_both_readers, "the reader that read all along and the one at the end saw different records"
    assert not found.out_of_order, found.out_of_order[:10]
    assert not found.still_open, found.still_open


def _by_partition(reads: list[Read]) -> dict[int, list[Read]]:
    grouped: dict[int, list[Read]] = defaultdict(list)
    for read in reads:
        grouped[read.partition].append(read)
    return dict(grouped)


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode()
