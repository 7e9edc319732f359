"""The producers that a worker keeps ready: used once, closed, and few."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest
from kafka_writers import new_name, producer_settings, records

from kafka_topics import WAIT_S, make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.errors import SinkError
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Ending, Transactions
from tallystick.records import Attempt
from tallystick.servers import Kafka
from tallystick.sinks.kafka import pool as pools
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.names import Slot
from tallystick.sinks.kafka.object_producer import ObjectProducer
from tallystick.sinks.kafka.pool import Pool
from tallystick.sinks.kafka.producer import Producer

Broker: TypeAlias = Kafka | Elsewhere


@pytest.fixture(scope="module")
def transactions(kafka: Broker) -> Iterator[Transactions]:
    made = Transactions(KafkaSettings.of(kafka.address))
    yield made
    made.close()


@pytest.fixture
def pool(kafka: Broker, tmp_path: Path) -> Iterator[Pool]:
    made = Pool(Slot(new_name() + "/", tmp_path), lambda name: ObjectProducer(producer_settings(kafka.address), name))
    yield made
    made.close()
    until(lambda: not made._helpers, "somebody still works for a pool that is closed")
    assert not made._ready
    assert not made.slot._held


def until(found: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def prepare(pool: Pool, topic: str, attempt: Attempt) -> Producer:
    producer = pool.take(attempt)
    producer.begin()
    producer.send(records(topic, [str(attempt).encode()]))
    producer.wait()
    pool.done(producer, attempt)
    return producer


def end(transactions: Transactions, producer: Producer, commit: bool) -> None:
    ending = Ending(producer.name, producer.producer_id, producer.producer_epoch, commit)
    assert transactions.end_soon([ending], WAIT_S) == [Answer.DONE]
    wait_for_markers("", producer.name, transactions)


def transact(pool: Pool, transactions: Transactions, topic: str, attempt: Attempt) -> Producer:
    producer = prepare(pool, topic, attempt)
    end(transactions, producer, commit=True)
    return producer


def test_a_warm_producer_is_used_and_names_come_back(kafka: Broker, transactions: Transactions, pool: Pool) -> None:
    topic = make_topic(kafka.address, partitions=1)
    names: list[str] = []
    for epoch in range(6):
        ready = [producer for _, producer in pool._ready]
        producer = transact(pool, transactions, topic, Attempt(epoch, 1))
        assert not ready or producer is ready[0]
        names.append(producer.name)
        until(lambda: pool._ready, "no producer was made in advance")
    assert len(set(names)) <= 2 * 1 + pools.AHEAD, names
    assert len(read_topic(kafka.address, topic)) == 6


def test_fifty_transactions_leave_no_threads_and_no_files_behind(
    kafka: Broker, transactions: Transactions, pool: Pool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    me = psutil.Process()

    def settled() -> tuple[int, int]:
        until(lambda: pool._ready and not pool._making and pool._work.empty(), "the helpers do not come to an end")
        time.sleep(0.3)
        return me.num_threads(), me.num_fds()

    for epoch in range(4):
        transact(pool, transactions, topic, Attempt(epoch, 1))
    before = settled()
    for epoch in range(4, 54):
        transact(pool, transactions, topic, Attempt(epoch, 1))
    after = settled()
    print(f"threads and files before {before}, after 50 transactions {after}")
    others = 10  # clients of other tests come and go in this process; one thing left behind each time would be 50
    assert after[0] <= before[0] + others
    assert after[1] <= before[1] + others
    assert len(read_topic(kafka.address, topic)) == 54


def test_what_waits_is_served_and_given_up_in_the_end(
    kafka: Broker, transactions: Transactions, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    transact(pool, transactions, topic, Attempt(0, 1))
    until(lambda: pool._ready, "no producer was made in advance")
    waiting = pool._ready[0][1]
    served = threading.Event()
    monkeypatch.setattr(waiting, "idle", served.set)
    assert served.wait(WAIT_S)
    until(lambda: not pool._making, "producers are still being made")
    monkeypatch.setattr(pools, "IDLE_S", 0.0)
    until(lambda: not pool._ready, "it is still there")
    until(lambda: not pool.slot._held, "its name is still held")
    monkeypatch.undo()
    assert transact(pool, transactions, topic, Attempt(1, 1)) is not waiting


def test_a_producer_that_cannot_be_made_gives_its_name_back(kafka: Broker, tmp_path: Path) -> None:
    def broken(name: str) -> Producer:
        raise SinkError(f"no producer for {name}")

    pool = Pool(Slot("broken/", tmp_path), broken)
    for _ in range(3):
        with pytest.raises(SinkError, match=r"no producer for .*\.0$"):
            pool.take(Attempt(0, 1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_helpers_that_die_do_not_leave_a_task_waiting_for_ever(
    kafka: Broker, transactions: Transactions, tmp_path: Path
) -> None:
    """Something unforeseen in the background, more often than there are helpers."""
    topic = make_topic(kafka.address, partitions=1)

    def in_the_foreground_only(name: str) -> Producer:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("unforeseen")
        return ObjectProducer(producer_settings(kafka.address), name)

    pool = Pool(Slot(new_name() + "/", tmp_path), in_the_foreground_only)
    names = [transact(pool, transactions, topic, Attempt(epoch, 1)).name for epoch in range(3 * pools.HELPERS)]
    until(lambda: not pool._making, "somebody is still waited for")
    until(lambda: not pool.slot._held, "a name is still held")
    assert len(set(names)) <= 2, names


# -- producers that go on where the last transaction of their name ended -----------------------------------------------


@pytest.fixture
def going_on(kafka: Broker, tmp_path: Path) -> Pool:
    settings = producer_settings(kafka.address, transaction_timeout_ms="1500")
    return Pool(Slot(new_name() + "/", tmp_path), lambda name: ArrowProducer(settings, name), ahead=False)


def identity(producer: Producer) -> tuple[str, int, int]:
    return producer.name, producer.producer_id, producer.producer_epoch


def values(kafka: Broker, topic: str) -> list[bytes | None]:
    return [one.value for one in read_topic(kafka.address, topic)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_has_the_next_epoch(
    kafka: Broker, transactions: Transactions, going_on: Pool, commit: bool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    first = transact(going_on, transactions, topic, Attempt(0, 1))
    name, producer_id, producer_epoch = identity(first)
    for epoch in range(1, 6):
        one = prepare(going_on, topic, Attempt(epoch, 1))
        assert identity(one) == (name, producer_id, producer_epoch + epoch), "nothing was initialised"
        end(transactions, one, commit)
    expected = [str(Attempt(epoch, 1)).encode() for epoch in range(6 if commit else 1)]
    assert values(kafka, topic) == expected


def test_the_transactions_of_one_epoch_have_names_of_their_own(
    kafka: Broker, transactions: Transactions, going_on: Pool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    used: set[str] = set()
    for epoch in range(4):
        several = [prepare(going_on, topic, Attempt(epoch, 1)) for _ in range(3)]
        assert len({one.name for one in several}) == 3
        used |= {one.name for one in several}
        for one in several:
            end(transactions, one, commit=True)
    assert len(used) == 3, "as many names as slices"
    assert len(read_topic(kafka.address, topic)) == 12


def test_a_transaction_that_nobody_ended_is_rolled_back_by_the_next_one(
    kafka: Broker, transactions: Transactions, going_on: Pool
) -> None:
    """As after a task that Spark ran twice: nobody voted for the one that is left over."""
    topic = make_topic(kafka.address, partitions=1)
    left = prepare(going_on, topic, Attempt(0, 1))
    following = transact(going_on, transactions, topic, Attempt(1, 1))
    assert following.name == left.name
    assert following.producer_epoch > left.producer_epoch + 1, "the name was initialised"
    assert values(kafka, topic) == [str(Attempt(1, 1)).encode()]


def test_a_name_that_somebody_else_has_used_meanwhile(
    kafka: Broker, transactions: Transactions, going_on: Pool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    first = transact(going_on, transactions, topic, Attempt(0, 1))
    assert transactions.initialise(first.name, 60_000) == ""
    following = transact(going_on, transactions, topic, Attempt(1, 1))
    assert following.producer_epoch == first.producer_epoch + 3, "ended, initialised twice"
    assert values(kafka, topic) == [str(Attempt(epoch, 1)).encode() for epoch in range(2)]


def test_a_transaction_that_timed_out_before_the_next_one(
    kafka: Broker, transactions: Transactions, going_on: Pool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    expired = prepare(going_on, topic, Attempt(0, 1))
    until(lambda: transactions.describe([expired.name])[0].state == "CompleteAbort", "it does not time out")
    transact(going_on, transactions, topic, Attempt(1, 1))
    assert values(kafka, topic) == [str(Attempt(1, 1)).encode()]


def test_a_producer_that_failed_has_no_successor(kafka: Broker, going_on: Pool) -> None:
    attempt = Attempt(0, 1)
    producer = going_on.take(attempt)
    producer.abort()
    going_on.done(producer, attempt)
    assert not going_on._successors
