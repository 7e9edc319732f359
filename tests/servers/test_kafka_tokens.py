"""Commit tokens on a real broker: what they say of a transaction that Kafka itself does not tell about any more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_writers import Written, new_name, producer_settings, records

from kafka_topics import WAIT_S, make_topic, read_topic, wait_for_markers
from real_servers import started
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Transactions
from tallystick.records import Attempt, Outcome
from tallystick.servers import Kafka as Broker
from tallystick.sinks import Kafka
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.kafka import tokens
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.producer import Position
from tallystick.sinks.kafka.tokens import Fate, Token, TokenReader

CONTEXT = SliceContext("job", Attempt(7, 2), "out", 3, 11)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that compacts, and at once."""
    eager = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    with started(Broker(tmp_path_factory.mktemp("kafka"), settings=eager)) as server:
        yield server


@pytest.fixture(scope="module")
def transactions(broker: Broker) -> Iterator[Transactions]:
    made = Transactions(KafkaSettings.of(broker.address))
    yield made
    made.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    return make_topic(broker.address, partitions=1)


@pytest.fixture
def reader(broker: Broker, topic: str, transactions: Transactions) -> Iterator[TokenReader]:
    made = TokenReader(KafkaSettings.of(broker.address), topic, transactions)
    yield made
    made.close()


def tokened(broker: Broker, topic: str, name: str | None = None) -> tuple[Written, Position]:
    """A transaction with both of its tokens, as the sink writes them."""
    producer = ArrowProducer(producer_settings(broker.address), name or new_name())
    try:
        producer.begin()
        producer.send_token(topic, producer.name.encode(), Token.of(CONTEXT).to_bytes())
        producer.wait()
        place = producer.first_token()
        second = Token.of(CONTEXT, rows=5, first=place)
        producer.send_token(topic, producer.name.encode(), second.to_bytes())
        producer.wait()
    finally:
        producer.close()
    return Written(producer, topic), place


def end(transactions: Transactions, one: Written, commit: bool) -> None:
    assert transactions.end_soon([one.ending(commit)], WAIT_S) == [Answer.DONE]
    wait_for_markers("", one.name, transactions)


def until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# -- the value --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [Token.of(CONTEXT), Token.of(CONTEXT, 0, Position(1, 0)), Token.of(CONTEXT, 9)])
def test_a_token_survives_its_bytes(token: Token) -> None:
    assert Token.from_bytes(token.to_bytes()) == token


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff", b'{"version": 1}', b'{"version": "x"}'])
def test_what_is_no_token_says_so(data: bytes) -> None:
    with pytest.raises(SinkError, match="not a commit token"):
        Token.from_bytes(data)


def test_a_newer_token_and_an_impossible_attempt() -> None:
    value = json.loads(Token.of(CONTEXT).to_bytes())
    with pytest.raises(SinkError, match="newer version of tallystick: use that one"):
        Token.from_bytes(json.dumps({**value, "version": 2}).encode())
    with pytest.raises(SinkError, match="not a commit token"):
        Token.from_bytes(json.dumps({**value, "attempt": "first"}).encode())


# -- fates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("after", [False, True])
def test_committed_or_aborted_whatever_became_of_the_name(
    broker: Broker, transactions: Transactions, topic: str, reader: TokenReader, commit: bool, after: bool
) -> None:
    """With and without later records in the partition."""
    one, place = tokened(broker, topic)
    assert reader.fate(place, one.name) is Fate.OPEN
    end(transactions, one, commit)
    if after:
        again, _ = tokened(broker, topic, name=one.name)
        end(transactions, again, commit=True)
    assert reader.fate(place, one.name) is (Fate.COMMITTED if commit else Fate.ABORTED)
    assert reader.read(place, one.name) == Token.of(CONTEXT), "committed or not, it can be read"


def test_a_strangers_open_transaction_before_it_hides_no_fate(
    broker: Broker, transactions: Transactions, topic: str, reader: TokenReader
) -> None:
    """A job that died and stays away leaves one behind, until its time-out."""
    stranger, stranger_at = tokened(broker, topic)
    committed, committed_at = tokened(broker, topic)
    aborted, aborted_at = tokened(broker, topic)
    fates = ((committed_at, committed.name), (aborted_at, aborted.name))
    assert [reader.fate(*one) for one in fates] == [Fate.OPEN, Fate.OPEN]
    end(transactions, committed, commit=True)
    end(transactions, aborted, commit=False)
    assert [reader.fate(*one) for one in fates] == [Fate.COMMITTED, Fate.ABORTED]
    again, again_at = tokened(broker, topic, name=committed.name)
    end(transactions, again, commit=False)
    assert [reader.fate(*one) for one in fates] == [Fate.COMMITTED, Fate.ABORTED], "the next of its name is another"
    assert reader.fate(again_at, again.name) is Fate.ABORTED
    assert reader.fate(stranger_at, stranger.name) is Fate.OPEN
    with pytest.raises(SinkError, match="is not about another-name"):
        reader.fate(committed_at, "another-name")
    end(transactions, stranger, commit=False)
    assert [reader.fate(*one) for one in fates] == [Fate.COMMITTED, Fate.ABORTED]


def test_tokens_of_other_jobs_around_it_do_not_matter(
    broker: Broker, transactions: Transactions, topic: str, reader: TokenReader
) -> None:
    made = [tokened(broker, topic) for _ in range(4)]
    for number, (one, _) in enumerate(made):
        end(transactions, one, commit=number % 2 == 0)
    later, _ = tokened(broker, topic)
    fates = [reader.fate(place, one.name) for one, place in made]
    assert fates == [Fate.COMMITTED, Fate.ABORTED] * 2
    end(transactions, later, commit=False)


def test_a_place_without_a_record_is_no_answer(reader: TokenReader) -> None:
    with pytest.raises(SinkError, match="has no commit token"):
        reader.fate(Position(-1, -1), "name")
    with pytest.raises(SinkError, match="was made anew"):
        reader.fate(Position(0, 10_000), "name")


def test_a_record_of_somebody_else_in_its_place_is_no_answer(
    broker: Broker, transactions: Transactions, topic: str, reader: TokenReader
) -> None:
    """The topic was deleted and made anew."""
    one, place = tokened(broker, topic)
    end(transactions, one, commit=True)
    with pytest.raises(SinkError, match="was made anew: partition 0 offset 0 is not about another-name"):
        reader.fate(place, "another-name")


def test_a_topic_that_is_not_there_is_no_answer(broker: Broker, transactions: Transactions) -> None:
    made = TokenReader(KafkaSettings.of(broker.address), new_name(), transactions)
    try:
        with pytest.raises(SinkError, match="cannot be read"):
            made.fate(Position(0, 0), "name")
    finally:
        made.close()


# -- compaction -------------------------------------------------------------------------------------------------------


def compacting_topic(broker: Broker) -> str:
    name = new_name()
    eager = {
        **tokens.SETTINGS,
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.ms": "300",
        "delete.retention.ms": "0",
    }
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, num_partitions=1, config=eager)])[name].result(WAIT_S)
    until(lambda: len(admin.list_topics(name, timeout=5).topics[name].partitions) == 1, "it is not known")
    return name


def compact(broker: Broker, transactions: Transactions, topic: str, gone: list[int]) -> None:
    """New records close the segment, and the cleaner comes by."""

    def is_gone() -> bool:
        filler, _ = tokened(broker, topic, name="filler")
        end(transactions, filler, commit=True)
        time.sleep(0.3)
        seen = {one.offset for one in read_topic(broker.address, topic, "read_uncommitted")}
        return not seen & set(gone)

    until(is_gone, f"{gone} of {topic} are still there")


def test_compaction_takes_the_first_token_and_changes_no_fate(broker: Broker, transactions: Transactions) -> None:
    topic = compacting_topic(broker)
    reader = TokenReader(KafkaSettings.of(broker.address), topic, transactions)
    try:
        committed, committed_at = tokened(broker, topic)
        end(transactions, committed, commit=True)
        aborted, aborted_at = tokened(broker, topic)
        end(transactions, aborted, commit=False)
        reused, reused_at = tokened(broker, topic)
        end(transactions, reused, commit=True)
        again, again_at = tokened(broker, topic, name=reused.name)
        end(transactions, again, commit=True)
        compact(broker, transactions, topic, [one.offset for one in (committed_at, reused_at, again_at)])
        assert reader.fate(committed_at, committed.name) is Fate.COMMITTED
        assert reader.fate(aborted_at, aborted.name) is Fate.ABORTED
        assert reader.fate(again_at, again.name) is Fate.COMMITTED
        with pytest.raises(SinkError, match=r"was compacted away in .* is not known any more"):
            reader.fate(reused_at, reused.name)
    finally:
        reader.close()


# -- the sink ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_the_sink_asks_the_token_when_the_name_was_started_anew(
    broker: Broker, transactions: Transactions, commit: bool
) -> None:
    sink = Kafka(broker.address, make_topic(broker.address), {"linger.ms": 1})
    sink.check(JobContext())
    batch = records("", [b"1", b"2"]).value
    transaction = sink.begin_transaction(SliceContext(new_name(), Attempt(0, 1), "out", 0, 1))
    sink.write(transaction, pa.RecordBatch.from_arrays([batch], ["value"]))
    committable = sink.pre_commit(transaction)
    if commit:
        assert sink.commit(committable) is Outcome.COMMITTED
    else:
        sink.abort(committable)
    until(lambda: transactions.initialise(committable["name"], 60_000) == "", "the name cannot be initialised")
    assert sink.commit(committable) is (Outcome.ALREADY_COMMITTED if commit else Outcome.EXPIRED)
    assert sink.commit({**committable, "producer": [999_999, 0]}) is (
        Outcome.ALREADY_COMMITTED if commit else Outcome.EXPIRED
    ), "nor if it is forgotten"


def test_rows_do_not_go_where_tokens_are(broker: Broker) -> None:
    """A row in their place would be taken for one."""
    with pytest.raises(ConfigError, match=r"tallystick\.tokens is for commit tokens alone"):
        Kafka(broker.address, tokens.TOPIC)
    sink = Kafka(broker.address)
    rows = pa.RecordBatch.from_pydict({"topic": [tokens.TOPIC], "value": pa.array([b"1"], pa.binary())})
    with pytest.raises(RowRefusedError, match=r"a row is for tallystick\.tokens"):
        list(sink._by_topic(rows))
