"""Markers that brokers forgot: a sole broker is killed right after it answered, and what it lost is put right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from kafka_writers import Written, new_name, written

from kafka_topics import WAIT_S, make_topic, read_topic
from real_servers import started
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.servers import Kafka
from tallystick.sinks.kafka import markers as markers_module
from tallystick.sinks.kafka.markers import Forgotten, Markers

TRIES = 8
"""It forgets in two of three tries; a machine on which it never does shows nothing."""
ROWS = [b"row %d" % number for number in range(20)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with started(Kafka(tmp_path_factory.mktemp("kafka"))) as server:
        yield server


@pytest.fixture
def connect(broker: Kafka) -> Iterator[Callable[[], Transactions]]:
    made: list[Transactions] = []

    def start() -> Transactions:
        made.append(Transactions(KafkaSettings.of(broker.address)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def complete(transactions: Transactions, one: Written) -> None:
    deadline = time.monotonic() + WAIT_S
    while not transactions.describe([one.name])[0].state.startswith("Complete"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def forgotten_by(
    broker: Kafka, connect: Callable[[], Transactions], commit: bool, earlier: Sequence[bytes]
) -> tuple[Written, Forgotten]:
    """A transaction that was ended, and the marker that is missing. ``earlier`` is what its name had written before."""
    for _ in range(TRIES):
        topic, name = make_topic(broker.address), new_name()
        if earlier:
            before = written(broker.address, topic, earlier, name)
            connect().end_soon([before.ending(commit=True)])
            complete(connect(), before)
        one = written(broker.address, topic, ROWS, name)
        connect().end_all([one.ending(commit)])
        broker.kill()
        broker.start()
        transactions = connect()
        complete(transactions, one)
        markers = Markers(transactions)
        markers.wrote(one.name, [one.topic])
        found = list(markers.forgotten(one.name))
        markers.close()
        if found:
            return one, found[0]
    pytest.skip(f"the broker forgot no marker in {TRIES} tries")


def settle_beside(markers: Markers, prefix: str) -> None:
    """As if nothing had happened to any broker, only some time had passed: first it is found, then put right."""
    markers._looked[prefix] = time.monotonic() - 2 * markers_module.LOOK_EVERY_S
    markers.settle(prefix)
    assert markers.beside.wait(WAIT_S)
    assert markers._suspected == {prefix}
    markers.settle(prefix)
    assert markers._suspected == set()


@pytest.mark.parametrize(
    ("commit", "earlier", "settle"),
    [
        (True, (b"earlier",), Markers.settle),
        (True, (b"earlier",), settle_beside),
        pytest.param(True, (), Markers.settle, marks=pytest.mark.slow),
        pytest.param(False, (b"earlier",), Markers.settle, marks=pytest.mark.slow),
    ],
)
def test_what_a_broker_forgot_is_noted_before_its_name_is_used_again(
    broker: Kafka,
    connect: Callable[[], Transactions],
    commit: bool,
    earlier: Sequence[bytes],
    settle: Callable[[Markers, str], None],
) -> None:
    one, missing = forgotten_by(broker, connect, commit, earlier)
    assert (missing.name, missing.commit) == (one.name, commit)
    transactions = connect()
    markers = Markers(transactions)
    markers.wrote(one.name, [one.topic])
    settle(markers, one.name)
    assert transactions.writing(transactions.partitions([one.topic])) == {
        place: [] for place in transactions.partitions([one.topic])
    }
    seen = [*earlier, *(ROWS if commit else [])]
    assert sorted(record.value or b"" for record in read_topic(broker.address, one.topic)) == sorted(seen)
    # the next transaction under that name shares nothing with it any more
    later = written(broker.address, one.topic, [b"later"], name=one.name)
    transactions.end_soon([later.ending(not commit)])
    complete(transactions, later)
    seen = seen if commit else [*earlier, b"later"]
    assert sorted(record.value or b"" for record in read_topic(broker.address, one.topic)) == sorted(seen)
    markers.close()


def test_a_marker_is_taken_in_a_partition_where_the_name_got_one_before(
    broker: Kafka, connect: Callable[[], Transactions]
) -> None:
    """The leader remembers which coordinator wrote that one, and refuses an older one."""
    transactions, topic = connect(), make_topic(broker.address, partitions=1)
    before = written(broker.address, topic, [b"before"])
    transactions.end_soon([before.ending(commit=True)])
    complete(transactions, before)
    written(broker.address, topic, ROWS, name=before.name)
    [(place, [open_there])] = transactions.writing(transactions.partitions([topic])).items()
    assert open_there.coordinator_epoch >= 0
    assert transactions.write_marker(place, replace(open_there, coordinator_epoch=-1), commit=True) != ""
    assert transactions.write_marker(place, open_there, commit=True) == ""
    assert [record.value for record in read_topic(broker.address, topic)] == [b"before", *ROWS]


def test_transactions_that_are_open_or_over_are_left_alone(broker: Kafka, connect: Callable[[], Transactions]) -> None:
    transactions, topic = connect(), make_topic(broker.address)
    prefix = f"{topic}/"
    over = written(broker.address, topic, [b"a"], name=f"{prefix}over")
    transactions.end_soon([over.ending(commit=True)])
    still_open = written(broker.address, topic, [b"b"], name=f"{prefix}open")
    markers = Markers(transactions)
    markers.wrote(prefix, [topic])
    markers.ended([over.name])
    markers.settle(prefix)
    assert list(markers.forgotten(prefix)) == []
    [found] = transactions.open(prefix)
    assert found.name == still_open.name
    markers.close()


def test_a_look_beside_an_epoch_takes_no_running_transaction_for_a_forgotten_one(
    broker: Kafka, connect: Callable[[], Transactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are used again and again, and looked at all the time."""
    monkeypatch.setattr(markers_module, "LOOK_EVERY_S", 0.0)
    transactions, topic = connect(), make_topic(broker.address)
    markers, prefix = Markers(transactions), f"{topic}/"
    markers.wrote(prefix, [topic])
    for number in range(30):
        markers.settle(prefix)
        one = written(broker.address, topic, [b"%d" % number], name=f"{prefix}again")
        transactions.end_soon([one.ending(commit=number % 3 > 0)])
        markers.ended([one.name])
        assert not markers._suspected
    assert markers.beside.begun > 20
    markers.close()


def test_a_connection_that_is_closed_during_a_look_beside_is_met_by_the_next_epoch(
    broker: Kafka, connect: Callable[[], Transactions]
) -> None:
    transactions = connect()
    markers = Markers(transactions)
    transactions.close()
    markers._look_beside("p/")
    assert markers._suspected == {"p/"}


def test_a_lost_connection_makes_it_look(
    broker: Kafka, connect: Callable[[], Transactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers_module, "LOOK_EVERY_S", 3600.0)
    transactions = connect()
    markers, looked, known = Markers(transactions), [], transactions.known
    transactions.known = lambda prefix: looked.append(prefix) or known(prefix)  # type: ignore[method-assign,func-returns-value]
    markers.settle("p/")
    assert looked, "at the start nothing is known"
    looked.clear()
    markers.settle("p/")
    assert not looked, "nothing has happened since"
    broker.kill()
    broker.start()
    deadline = time.monotonic() + WAIT_S
    while not looked:
        markers.settle("p/")
        assert time.monotonic() < deadline
        time.sleep(0.05)
    markers.close()
