"""`tallystick.kafka.transactions` on a real broker: every row of its table, and what else may happen on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType
from kafka_writers import Written, new_name, written

from kafka_topics import WAIT_S, make_topic, read_topic, wait_for_markers
from real_servers import started
from tallystick.errors import SinkError
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Ending, Transactions
from tallystick.servers import Kafka, TcpProxy, Way

MANY = 64


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One that may be killed."""
    with started(Kafka(tmp_path_factory.mktemp("kafka"))) as server:
        yield server


@pytest.fixture(scope="module")
def transactions(broker: Kafka) -> Iterator[Transactions]:
    made = Transactions(KafkaSettings.of(broker.address))
    yield made
    made.close()


@pytest.fixture(scope="module")
def proxy(broker: Kafka) -> Iterator[TcpProxy]:
    with broker.proxy() as opened:
        yield opened


@pytest.fixture(scope="module")
def topic(broker: Kafka) -> str:
    return make_topic(broker.address)


@pytest.fixture
def open_one(broker: Kafka, topic: str) -> Callable[..., Written]:
    return lambda **options: written(broker.address, topic, **options)


def until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def initialise(transactions: Transactions, name: str) -> None:
    """As a new producer of that name would; it has to come back while something open is aborted."""
    until(lambda: transactions.initialise(name, 60_000) == "", f"{name} cannot be initialised")


def state_of(transactions: Transactions, one: Written) -> str:
    [found] = transactions.describe([one.name])
    return found.state


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_one_is_ended_and_the_same_again_changes_nothing(
    transactions: Transactions, broker: Kafka, commit: bool
) -> None:
    topic = make_topic(broker.address, partitions=1)
    one = written(broker.address, topic, [b"a", b"b"])
    assert read_topic(broker.address, topic) == []
    for _ in range(3):
        assert transactions.end_soon([one.ending(commit)]) == [Answer.DONE]
    wait_for_markers(broker.address, one.name, transactions)
    assert state_of(transactions, one) == ("CompleteCommit" if commit else "CompleteAbort")
    assert transactions.end_all([one.ending(commit)]) == [Answer.DONE], "any time later"
    assert [record.value for record in read_topic(broker.address, topic)] == ([b"a", b"b"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_repeated_while_markers_are_written_it_is_later(
    transactions: Transactions, open_one: Callable[..., Written], commit: bool
) -> None:
    """A matter of milliseconds: one connection, and the repeats are there before the markers."""
    seen: set[Answer] = set()
    for _ in range(10):
        ending = open_one().ending(commit)
        first, *repeats = transactions.end_all([ending] * 8)
        assert first is Answer.DONE
        assert set(repeats) <= {Answer.DONE, Answer.LATER}
        assert transactions.end_soon([ending]) == [Answer.DONE]
        seen |= set(repeats)
        if Answer.LATER in seen:
            return
    pytest.fail(f"the markers were always faster: {seen}")


@pytest.mark.parametrize("commit", [True, False])
def test_the_other_ending_comes_too_late(
    transactions: Transactions, open_one: Callable[..., Written], commit: bool
) -> None:
    """Committed and aborted in one breath: the first stands, the second is told so and changes nothing."""
    one = open_one()
    first, second = transactions.end_soon([one.ending(commit), one.ending(not commit)])
    assert (first, second) == (Answer.DONE, Answer.GONE)
    until(lambda: state_of(transactions, one).startswith("Complete"), "it does not end")
    assert transactions.end_all([one.ending(not commit)]) == [Answer.GONE]
    assert state_of(transactions, one) == ("CompleteCommit" if commit else "CompleteAbort")


def test_timed_out_by_the_broker_it_is_gone(transactions: Transactions, open_one: Callable[..., Written]) -> None:
    one = open_one(transaction_timeout_ms="1000")
    until(lambda: state_of(transactions, one) == "CompleteAbort", "it does not time out")
    assert transactions.end_all([one.ending(commit=True)]) == [Answer.GONE]
    assert transactions.end_all([one.ending(commit=False)]) == [Answer.DONE]
    assert transactions.end_all([one.ending(commit=True)]) == [Answer.GONE], "whatever was asked in between"


@pytest.mark.parametrize("before", ["committed", "aborted", "open"])
def test_a_name_that_was_initialised_anew_does_not_tell_what_was(
    transactions: Transactions, open_one: Callable[..., Written], before: str
) -> None:
    one = open_one()
    if before != "open":
        assert transactions.end_soon([one.ending(before == "committed")]) == [Answer.DONE]
    initialise(transactions, one.name)
    for commit in (True, False):
        assert transactions.end_soon([one.ending(commit)]) == [Answer.FENCED]


def test_a_late_ending_does_not_touch_the_next_transaction_of_the_name(
    transactions: Transactions, open_one: Callable[..., Written]
) -> None:
    first = open_one()
    assert transactions.end_soon([first.ending(commit=True)]) == [Answer.DONE]
    second = open_one(name=first.name)
    for commit in (True, False):
        assert transactions.end_soon([first.ending(commit)]) == [Answer.FENCED]
    assert state_of(transactions, second) == "Ongoing"
    assert transactions.end_soon([second.ending(commit=True)]) == [Answer.DONE]


@pytest.mark.parametrize("commit", [True, False])
def test_an_unknown_name_or_another_producer_is_forgotten(
    transactions: Transactions, open_one: Callable[..., Written], commit: bool
) -> None:
    one = open_one()
    ending = one.ending(commit)
    strangers = [Ending(new_name(), 1, 0, commit), Ending(one.name, ending.producer_id + 10_000, 0, commit)]
    assert transactions.end_soon(strangers) == [Answer.FORGOTTEN, Answer.FORGOTTEN]
    assert state_of(transactions, one) == "Ongoing"
    assert transactions.end_soon([ending]) == [Answer.DONE]


# -- many, and lost answers -------------------------------------------------------------------------------------------


def test_many_endings_at_once(transactions: Transactions, broker: Kafka) -> None:
    topic = make_topic(broker.address, partitions=4)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: written(broker.address, topic, [b"%d" % n]), range(MANY)))
    endings = [one.ending(commit=number % 4 != 0) for number, one in enumerate(made)]
    began = time.monotonic()
    assert transactions.end_soon(endings, 30) == [Answer.DONE] * MANY
    took_ms = (time.monotonic() - began) * 1000
    print(f"{MANY} endings at once: {took_ms:.0f} ms, {took_ms / MANY:.1f} ms each")
    wait_for_markers(broker.address, "name-", transactions)
    found = sorted(int(record.value or b"-1") for record in read_topic(broker.address, topic))
    assert found == [number for number in range(MANY) if number % 4 != 0]


def test_no_endings_no_question(transactions: Transactions) -> None:
    assert transactions.end_all([]) == []
    assert transactions.end_soon([]) == []


def test_several_threads_share_a_connection(transactions: Transactions, open_one: Callable[..., Written]) -> None:
    made = [open_one() for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: transactions.end_soon([one.ending(commit=True)], 30), made * 2))
    assert answers == [[Answer.DONE]] * 16


@pytest.mark.parametrize("wrong", ["no such node", "forgotten"])
def test_a_coordinator_that_is_not_where_it_was_is_looked_up_again(
    transactions: Transactions, open_one: Callable[..., Written], wrong: str
) -> None:
    one = open_one()
    cache = transactions._admin._manager.cluster._coordinators
    if wrong == "forgotten":
        cache.clear()
    else:
        cache[(transactions._connection._transaction_type, one.name)] = 77
    assert transactions.end_soon([one.ending(commit=True)], 10) == [Answer.DONE]
    assert state_of(transactions, one).endswith("Commit")


def test_a_lost_answer_is_later_and_then_done(broker: Kafka, proxy: TcpProxy, open_one: Callable[..., Written]) -> None:
    watching, behind = (
        Transactions(KafkaSettings.of(address, {"request.timeout.ms": 1500}))
        for address in (broker.address, proxy.address)
    )
    try:
        first, second = open_one(), open_one()
        assert behind.end_soon([first.ending(commit=True)]) == [Answer.DONE]
        behind._connection.run(behind._connection.coordinators, [second.name])
        proxy.hold(Way.TO_CLIENT)
        assert behind.end_all([second.ending(commit=True)]) == [Answer.LATER]
        until(lambda: state_of(watching, second) == "CompleteCommit", "the request did not get through")
        proxy.heal()
        assert behind.end_soon([second.ending(commit=True)], 20) == [Answer.DONE]
        assert behind.end_soon([second.ending(commit=False)], 20) == [Answer.GONE]
    finally:
        proxy.heal()
        behind.close()
        watching.close()


def test_a_further_connection_has_nothing_to_ask_first(
    broker: Kafka, proxy: TcpProxy, open_one: Callable[..., Written]
) -> None:
    """It is used when it knows who coordinates the names that it was made for, and is connected to them."""
    watching = Transactions(KafkaSettings.of(broker.address))
    behind = Transactions(KafkaSettings.of(proxy.address, {"request.timeout.ms": 1500}))
    try:
        names = [new_name(), new_name()]
        made = [open_one(name=name) for name in names]
        assert behind.end_soon([one.ending(commit=True) for one in made], 20) == [Answer.DONE] * 2
        until(lambda: len(behind._lanes) == 2, "there is no further connection")
        wait_for_markers("", "name-", watching)
        made = [open_one(name=name) for name in names]
        proxy.hold(Way.TO_CLIENT)
        assert behind.end_all([one.ending(commit=True) for one in made]) == [Answer.LATER] * 2
        until(lambda: {state_of(watching, one) for one in made} == {"CompleteCommit"}, "a request did not get through")
    finally:
        proxy.heal()
        behind.close()
        watching.close()


def test_a_cut_connection_is_later_soon(proxy: TcpProxy, open_one: Callable[..., Written]) -> None:
    behind = Transactions(KafkaSettings.of(proxy.address))
    try:
        one = open_one()
        proxy.cut()
        began = time.monotonic()
        assert behind.end_soon([one.ending(commit=True)], 0.5) == [Answer.LATER]
        assert time.monotonic() - began < 20
        proxy.heal()
        assert behind.end_soon([one.ending(commit=True)], 20) == [Answer.DONE]
    finally:
        proxy.heal()
        behind.close()


def test_a_broker_that_was_killed_remembers(broker: Kafka, transactions: Transactions) -> None:
    topic = make_topic(broker.address, partitions=1)
    kept, dropped, done = (written(broker.address, topic, [value]) for value in (b"kept", b"dropped", b"done"))
    assert transactions.end_soon([done.ending(commit=True)]) == [Answer.DONE]
    # a broker that is killed in between may forget the marker: docs/explanation/what-is-not-promised.md, "Brokers"
    wait_for_markers(broker.address, "name-", transactions)
    broker.kill()
    endings = [kept.ending(commit=True), dropped.ending(commit=False), done.ending(commit=True)]
    began = time.monotonic()
    assert transactions.end_all(endings) == [Answer.LATER] * 3
    assert time.monotonic() - began < 20
    broker.start()
    assert transactions.end_soon(endings, WAIT_S) == [Answer.DONE] * 3
    assert transactions.end_soon([dropped.ending(commit=True)], WAIT_S) == [Answer.GONE]
    wait_for_markers(broker.address, "name-", transactions)
    until(lambda: len(read_topic(broker.address, topic)) == 2, "readers do not see them")
    assert {record.value for record in read_topic(broker.address, topic)} == {b"kept", b"done"}


# -- what is open -----------------------------------------------------------------------------------------------------


def test_open_ones_are_found_by_their_prefix(transactions: Transactions, open_one: Callable[..., Written]) -> None:
    prefix = new_name()
    one, other = open_one(name=f"{prefix}/1"), open_one(name=f"{prefix}/2")
    open_one(name=f"{new_name()}/1")
    found = {each.name: each for each in transactions.open(f"{prefix}/")}
    assert set(found) == {one.name, other.name}
    seen = found[one.name]
    assert (seen.producer_id, seen.producer_epoch) == (one.producer.producer_id, one.producer.producer_epoch)
    assert seen.state == "Ongoing"
    assert {topic for topic, _ in seen.partitions} == {one.topic}
    assert abs(time.time() - seen.started_ms / 1000) < WAIT_S
    assert transactions.end_soon([one.ending(commit=True), other.ending(commit=False)]) == [Answer.DONE] * 2
    assert transactions.open(f"{prefix}/") == []


def test_describe_leaves_out_what_nobody_knows(transactions: Transactions, open_one: Callable[..., Written]) -> None:
    one = open_one()
    assert transactions.describe([]) == []
    assert transactions.describe([new_name()]) == []
    assert [found.name for found in transactions.describe([new_name(), one.name, new_name()])] == [one.name]
    assert transactions.end_soon([one.ending(commit=False)]) == [Answer.DONE]
    wait_for_markers("", one.name, transactions)
    [ended] = transactions.describe([one.name])
    assert (ended.state, ended.started_ms < 0 or ended.partitions == frozenset()) == ("CompleteAbort", True)


def test_who_writes_to_a_partition_and_since_where(transactions: Transactions, broker: Kafka) -> None:
    topic = make_topic(broker.address, partitions=1)
    one, other = written(broker.address, topic, [b"a"]), written(broker.address, topic, [b"b", b"c", b"d"])
    found = {state.producer_id: state for state in transactions.writing([(topic, 0)])[(topic, 0)]}
    for each, first_offset, last_sequence in ((one, 0, 0), (other, 1, 2)):
        state = found.pop(each.producer.producer_id)
        assert (state.producer_epoch, state.first_offset) == (each.producer.producer_epoch, first_offset)
        assert state.last_sequence == last_sequence
    assert found == {}
    assert transactions.end_soon([one.ending(commit=True), other.ending(commit=False)]) == [Answer.DONE] * 2
    until(lambda: transactions.writing([(topic, 0)]) == {(topic, 0): []}, "they are still writing")
    assert transactions.writing([]) == {}


@pytest.mark.parametrize("commit", [True, False])
def test_a_partitions_log_tells_how_a_transaction_ended(
    transactions: Transactions, broker: Kafka, commit: bool
) -> None:
    """Behind one that is open, before many records of others, and whatever the next of its name does."""
    topic = make_topic(broker.address, partitions=1)
    place = (topic, 0)
    written(broker.address, topic)
    one = written(broker.address, topic, compression_type="gzip")
    assert transactions.ending_in_log(place, 2) is None
    other = written(broker.address, topic, [bytes(500_000)] * 4)
    assert transactions.end_soon([other.ending(commit=not commit)]) == [Answer.DONE]
    wait_for_markers("", other.name, transactions)
    assert transactions.ending_in_log(place, 2) is None, "somebody else's marker, more than one answer further on"
    assert transactions.end_soon([one.ending(commit)]) == [Answer.DONE]
    wait_for_markers("", one.name, transactions)
    again = written(broker.address, topic, name=one.name)
    assert transactions.end_soon([again.ending(commit=not commit)]) == [Answer.DONE]
    wait_for_markers("", again.name, transactions)
    assert [transactions.ending_in_log(place, offset) for offset in (1, 2, 3, 4)] == [None, commit, commit, not commit]


def test_a_log_that_does_not_tell(transactions: Transactions, broker: Kafka) -> None:
    topic = make_topic(broker.address, partitions=1)
    assert transactions.ending_in_log((topic, 0), 0) is None, "nothing is there"
    with pytest.raises(SinkError, match="partition 0 cannot be read: OffsetOutOfRangeError"):
        transactions.ending_in_log((topic, 0), 10)
    with pytest.raises(SinkError, match="cannot be read: UnknownTopicOrPartitionError"):
        transactions.ending_in_log((new_name(), 0), 0)


def test_activity_changes_when_somebody_works(transactions: Transactions, open_one: Callable[..., Written]) -> None:
    prefix = new_name()
    seen = [transactions.activity(prefix)]
    one = open_one(name=f"{prefix}/1")
    seen.append(transactions.activity(prefix))
    assert transactions.activity(prefix) == seen[-1], "a dead job looks the same"
    assert transactions.end_soon([one.ending(commit=True)]) == [Answer.DONE]
    wait_for_markers("", prefix, transactions)
    seen.append(transactions.activity(prefix))
    initialise(transactions, one.name)
    seen.append(transactions.activity(prefix))
    assert len(set(seen)) == 4


def test_the_newest_way_of_ending_is_known(transactions: Transactions) -> None:
    assert transactions.newest_end_version() == 5


def test_a_cluster_that_was_upgraded_without_the_newest_transactions(
    broker: Kafka, open_one: Callable[..., Written]
) -> None:
    """EndTxn 5 comes with the brokers, not with the feature: every answer is the same with transaction.version 1."""
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        admin.update_features({"transaction.version": (UpdateFeatureType.SAFE_DOWNGRADE, 1)})
        asked = Transactions(KafkaSettings.of(broker.address))
        for commit in (True, False):
            one = open_one()
            for ending, answer in ((commit, Answer.DONE), (commit, Answer.DONE), (not commit, Answer.GONE)):
                assert asked.end_soon([one.ending(ending)]) == [answer]
            initialise(asked, one.name)
            assert asked.end_soon([one.ending(commit)]) == [Answer.FENCED]
        timed_out = open_one(transaction_timeout_ms="1000")
        until(lambda: state_of(asked, timed_out) == "CompleteAbort", "it does not time out")
        assert asked.end_all([timed_out.ending(commit=True)]) == [Answer.GONE]
        asked.close()
    finally:
        admin.update_features({"transaction.version": (UpdateFeatureType.UPGRADE, 2)})
        admin.close()


def test_what_cannot_be_initialised_says_why(transactions: Transactions) -> None:
    errors: list[str] = []

    def known() -> bool:
        errors.append(transactions.initialise(new_name(), 900_001))
        return not errors[-1].startswith("Coordinator")  # the broker may have just started

    until(known, "there is no coordinator")
    assert errors[-1] == "InvalidTransactionTimeoutError"
