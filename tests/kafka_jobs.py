"""Jobs that write to Kafka, for tests: run to their end, done again, and looked at in journal and broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from kafka_topics import WAIT_S, read_topic, wait_for_markers
from tallystick.errors import SinkError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.kafka.transactions import Answer, Ending, Found
from tallystick.records import Decision, Json, Outcome, Vote
from tallystick.sinks import Kafka

EPOCH_TIMEOUT = "2m"


def numbers(count: int = 40, per_epoch: int = 10) -> ts.sources.Collection:
    """Rows ``key, value`` in two slices per epoch: the values are 0, 1, 2, … as text."""
    rows = [{"key": f"k{number % 5}", "value": str(number)} for number in range(count)]
    return ts.sources.Collection(rows, per_epoch=per_epoch, partitions=2)


def job(folder: Path, sink: Any, **settings: Any) -> ts.Job:
    settings.setdefault("source", numbers())
    checkpoint = ts.Checkpoint(folder / "checkpoint", interval="0s", timeout=EPOCH_TIMEOUT)
    return ts.Job("numbers", sink=sink, checkpoint=checkpoint, **settings)


def run(declared: ts.Job, spark: SparkSession) -> list[str]:
    """Run to the end; returns how each epoch ended."""
    endings: list[str] = []
    declared.run(spark, available_now=True, on_finished=lambda _, finished: endings.append(finished.how))
    return endings


def repeat_epoch(folder: Path, epoch: int) -> None:
    """Spark runs an epoch again that is not in its commit log."""
    for name in (f"{epoch}", f".{epoch}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)


def journal(folder: Path) -> Journal:
    return Journal(PosixStore(folder / "checkpoint" / "tallystick"))


def prefix(folder: Path, sink: Kafka) -> str:
    owner = journal(folder).identity()
    assert owner is not None
    return sink.prefix(owner.id)


def open_ones(folder: Path, sink: Kafka) -> list[Found]:
    return sink.driver.transactions.open(prefix(folder, sink))


def values(folder: Path, sink: Kafka, topic: str | None = None) -> list[str]:
    """What a reader of committed records finds, when all that was ended is ended for readers, too."""
    transactions = sink.driver.transactions
    wait_for_markers(sink.settings.servers, prefix(folder, sink), transactions)
    return texts(sink.settings.servers, topic or str(sink.topic))


def texts(address: str, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_topic(address, topic)]


def as_text(numbers: Sequence[int] | range) -> list[str]:
    return [str(number) for number in numbers]


@contextmanager
def dying_after_the_decision(epoch: int) -> Iterator[None]:
    """The driver ends between the decision about this epoch and its first commit. Workers know nothing of it."""
    commit_all, calls = Kafka.commit_all, iter(range(epoch))

    def commit(sink: Kafka, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        if next(calls, None) is None:
            raise SinkError("the driver died")
        return commit_all(sink, committables, recovering)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kafka, "commit_all", commit)
        with pytest.raises(SinkError, match="the driver died"):
            yield


def decided(folder: Path, epoch: int) -> list[Vote]:
    """The votes of the first attempt at an epoch."""
    record = journal(folder).records(epoch)[0]
    assert record.decision is Decision.COMMIT
    return [vote for vote in record.votes if vote.committable is not None]


def end(sink: Kafka, vote: Vote, commit: bool = False) -> None:
    producer_id, producer_epoch = vote.committable["producer"]
    ending = Ending(vote.committable["name"], producer_id, producer_epoch, commit)
    assert sink.driver.transactions.end_soon([ending], WAIT_S) == [Answer.DONE]
