"""What is open of settled epochs is looked for now and then, beside the epochs, on a real broker."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest
from kafka_writers import new_name

from kafka_topics import WAIT_S, make_topic
from real_servers import Elsewhere
from tallystick.errors import SinkError
from tallystick.records import Attempt, Json, Outcome
from tallystick.servers import Kafka as Broker
from tallystick.sinks import Kafka
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.kafka import driver, tokens

ROWS = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2"], pa.binary())})


@pytest.fixture
def sink(kafka: Broker | Elsewhere) -> Kafka:
    made = Kafka(kafka.address, make_topic(kafka.address), {"linger.ms": 1})
    made.check(JobContext())
    return made


@pytest.fixture
def job() -> str:
    return new_name()


def prepared(sink: Kafka, job: str, epoch: int, task: int = 1) -> Json:
    transaction = sink.begin_transaction(SliceContext(job, Attempt(epoch, 1), "out", 0, task))
    sink.write(transaction, ROWS)
    return sink.pre_commit(transaction)


def open_epochs(sink: Kafka, job: str) -> list[int]:
    return sorted(one.attempt.epoch for one in sink.open_transactions(job))


def test_at_the_start_at_once_and_then_not_in_every_epoch(sink: Kafka, job: str) -> None:
    prepared(sink, job, epoch=3)
    sink.settled(job, 3)
    assert open_epochs(sink, job) == []
    prepared(sink, job, epoch=4)
    sink.settled(job, 4)
    assert sink.driver.beside.wait(WAIT_S) or sink.driver.beside.begun == 0
    assert open_epochs(sink, job) == [4]


def test_beside_an_epoch_that_is_on_its_way(sink: Kafka, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.settled(job, 3)
    monkeypatch.setattr(driver, "SWEEP_EVERY_S", 0.0)
    prepared(sink, job, epoch=4)
    running = prepared(sink, job, epoch=5, task=2)
    sink.settled(job, 4)
    assert sink.driver.beside.wait(WAIT_S)
    assert open_epochs(sink, job) == [5]
    assert sink.commit(running) is Outcome.COMMITTED


def test_while_one_sink_is_swept_another_has_to_wait_but_not_for_its_next_turn(sink: Kafka) -> None:
    """Sinks share the connection, and all of them are settled at the same time: one would never have its turn."""
    go_on, swept, connection = threading.Event(), list[str](), sink.driver

    def sweep_one() -> None:
        go_on.wait(WAIT_S)
        swept.append("one")

    for prefix in ("one", "other"):
        connection.now_and_then(prefix, lambda: None)
        connection._swept[prefix] -= driver.SWEEP_EVERY_S
    connection.now_and_then("one", sweep_one)
    connection.now_and_then("other", lambda: swept.append("too soon"))
    go_on.set()
    assert connection.beside.wait(WAIT_S)
    connection.now_and_then("one", lambda: swept.append("not due"))
    connection.now_and_then("other", lambda: swept.append("other"))
    assert connection.beside.wait(WAIT_S)
    assert swept == ["one", "other"]


def test_what_began_after_the_epoch_was_settled_is_left_alone(
    sink: Kafka, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has no token yet cannot say of which epoch it is: it may be of the next one."""
    settled_at = time.time() - 1.0
    running = prepared(sink, job, epoch=5)
    monkeypatch.setattr("tallystick.sinks.kafka.sink.TOKENLESS_S", 0.0)
    monkeypatch.setattr(tokens.TokenReader, "read", lambda *_: None)
    assert open_epochs(sink, job) == [0]
    sink._sweep(job, 4, settled_at)
    assert open_epochs(sink, job) == [0]
    sink._sweep(job, 4, time.time())
    assert open_epochs(sink, job) == []
    assert sink.commit(running) is Outcome.EXPIRED


def test_what_cannot_be_told_apart_ends_nothing_and_fails_no_epoch(
    sink: Kafka, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a newer driver's."""
    committable = prepared(sink, job, epoch=5)
    monkeypatch.setattr(tokens, "READ_TIMEOUT_S", 0.0)
    with pytest.raises(SinkError, match="could not be read"):
        list(sink.open_transactions(job))
    sink.settled(job, 9)
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_connection_that_is_closed_under_it_fails_nothing(
    sink: Kafka, job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink.settled(job, 3)
    monkeypatch.setattr(driver, "SWEEP_EVERY_S", 0.0)
    left = prepared(sink, job, epoch=4)
    old = sink.driver
    driver.driver_for.forget(sink.settings)
    monkeypatch.setattr(Kafka, "driver", property(lambda _: old))
    sink._sweep(job, 4, time.time())
    assert "leftovers of epoch 4 and before were not looked for" in caplog.text
    monkeypatch.undo()
    sink.abort(left)
