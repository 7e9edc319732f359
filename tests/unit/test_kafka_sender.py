"""A sender against brokers that answer as no real one does on demand: late, out of order, never, half."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pytest

from tallystick.errors import NotAllowedError, SinkError
from tallystick.kafka.connection import Leaders
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.writer import Lost, Taken
from tallystick.sinks.kafka import sender as module
from tallystick.sinks.kafka.batches import Body, Compression
from tallystick.sinks.kafka.producer_settings import ProducerSettings
from tallystick.sinks.kafka.sender import Sender

Place = tuple[str, int]
Answered = Callable[[list[Taken] | Lost], None]
PLAIN = Compression.of("none")
NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, FENCED, INVALID_EPOCH, DENIED = 19, 45, 90, 47, 29


def identity(data: bytes) -> tuple[int, int, int]:
    """Of a batch: producer id, epoch, and sequence number."""
    found: tuple[int, int, int] = struct.unpack(">qhi", data[43:57])
    return found


class Cluster:
    """Takes batches in order of their sequence, unless ``answer`` says something else about them."""

    def __init__(self) -> None:
        self.taken: dict[Place, list[tuple[int, int, int]]] = {}
        self.requests = self.initialised = 0
        self.lead: dict[Place, int] = {}
        self.looked: list[set[str]] = []
        self.looking: Callable[[], None] = lambda: None
        self.answer: Callable[[int, Place, bytes], int | Lost | None] = lambda node, place, data: 0
        self.unanswered: list[tuple[list[tuple[Place, bytes]], Answered]] = []

    def initialise(self, name: str, timeout_ms: int, patience_s: float) -> tuple[int, int]:
        self.initialised += 1
        return 7, 10 * self.initialised

    def abort(self, name: str, producer_id: int, producer_epoch: int, patience_s: float) -> None:
        self.taken.clear()

    def leaders(self, topic: str, patience_s: float, create: bool = False) -> Leaders:
        return Leaders(0, tuple(self.lead.get((topic, number), 1) for number in range(2)))

    def look(self, topics: Iterable[str], patience_s: float, create: bool = False) -> None:
        self.looked.append(set(topics))
        self.looking()

    def produce(
        self, node: int, name: str, batches: Sequence[tuple[Place, bytes]], timeout_ms: int, answered: Answered
    ) -> None:
        self.requests += 1
        said: list[Taken] = []
        for place, data in batches:
            code = self.answer(node, place, data)
            if code is None:
                self.unanswered.append((list(batches), answered))
                return
            if isinstance(code, Lost):
                answered(code)
                return
            if code == 0:
                self.taken.setdefault(place, []).append(identity(data))
            said.append(Taken(place, code, len(self.taken.get(place, ())) - 1, f"code {code}"))
        answered(said)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(module, "writer_for", lambda settings: made)
    return made


def sender(expected: tuple[int, int] | None = None, **options: str) -> Sender:
    given = {name.replace("_", "."): value for name, value in options.items()}
    settings = KafkaSettings.of("nowhere:1", {"retry.backoff.ms": "5", **given})
    made = Sender(ProducerSettings(settings, transaction_timeout_ms=1000), "name", expected)
    made.begin()
    return made


def put(one: Sender, *places: Place) -> None:
    for place in places:
        one.put(place, Body(1, pa.py_buffer(b"record"), 0, 0), PLAIN, b"key", 6)


@pytest.mark.parametrize(("look_s", "pause_ms"), [(0.03, "5"), (0.0, "1")])
def test_brokers_that_never_take_anything_are_given_up_whatever_they_answer(
    cluster: Cluster, look_s: float, pause_ms: str
) -> None:
    """Also if asking where the leaders are takes longer than the pause, or the pause is very short."""
    cluster.answer = lambda node, place, data: NOT_ENOUGH_REPLICAS
    cluster.looking = lambda: time.sleep(look_s)
    one = sender(retry_backoff_ms=pause_ms)
    put(one, ("t", 0))
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"neither taken nor refused after 1 s \(code 19\)"):
        one.wait()
    assert 1.0 <= time.monotonic() - began < 3.0
    assert cluster.requests < 1200, "it does not ask without a pause"


def test_a_new_leader_that_has_not_seen_what_the_old_one_was_sent(cluster: Cluster) -> None:
    """The old one does not answer; the new one refuses what follows, and takes everything in order in the end."""
    cluster.answer = lambda node, place, data: None
    one = sender()
    put(one, ("t", 0))
    one.exchange(0)
    cluster.lead[("t", 0)] = 2

    def new_leader(node: int, place: Place, data: bytes) -> int:
        following = identity(data)[2] == len(cluster.taken.get(place, ()))
        return 0 if following else OUT_OF_ORDER

    cluster.answer = new_leader
    put(one, ("t", 0))
    one.exchange(0)
    assert one.failure is None
    assert cluster.taken == {}
    [(_, old_leader_answered)] = cluster.unanswered
    old_leader_answered(Lost("disconnected", final=False))
    one.wait()
    assert [number for _, _, number in cluster.taken[("t", 0)]] == [0, 1]


def test_the_first_batch_out_of_order_is_an_error(cluster: Cluster) -> None:
    cluster.answer = lambda node, place, data: OUT_OF_ORDER
    one = sender()
    put(one, ("t", 0))
    with pytest.raises(SinkError, match="code 45"):
        one.wait()


@pytest.mark.parametrize("code", [FENCED, INVALID_EPOCH])
def test_an_epoch_that_is_not_the_expected_one_is_replaced(cluster: Cluster, code: int) -> None:
    cluster.answer = lambda node, place, data: 0 if identity(data)[1] == 10 else code
    one = sender(expected=(7, 5))
    assert cluster.initialised == 0, "nothing is asked before"
    put(one, ("t", 0), ("t", 1), ("t", 0))
    one.wait()
    assert cluster.initialised == 1
    assert (one.producer_id, one.producer_epoch) == (7, 10)
    assert cluster.taken == {("t", 0): [(7, 10, 0), (7, 10, 1)], ("t", 1): [(7, 10, 0)]}


def test_an_epoch_that_some_take_and_others_refuse_fails_the_slice(cluster: Cluster) -> None:
    cluster.lead[("t", 1)] = 2
    cluster.answer = lambda node, place, data: 0 if place[1] == 0 else FENCED
    one = sender(expected=(7, 5))
    put(one, ("t", 0), ("t", 1))
    with pytest.raises(SinkError):
        one.wait()
    assert cluster.initialised == 0, "what was taken must not be forgotten"


def test_an_epoch_that_was_taken_and_is_fenced_later_fails_the_slice(cluster: Cluster) -> None:
    """Somebody has ended it while it was written."""
    one = sender(expected=(7, 5))
    put(one, ("t", 0))
    one.wait()
    cluster.answer = lambda node, place, data: FENCED
    put(one, ("t", 0))
    with pytest.raises(SinkError):
        one.wait()
    assert cluster.initialised == 0


def test_what_will_never_be_answered_fails_at_once(cluster: Cluster) -> None:
    cluster.answer = lambda node, place, data: Lost("SaslAuthenticationFailedError", final=True)
    one = sender()
    put(one, ("t", 0))
    began = time.monotonic()
    with pytest.raises(SinkError, match="the brokers refuse this client: SaslAuthenticationFailedError"):
        one.wait()
    assert time.monotonic() - began < 0.9


def test_who_may_not_ask_for_leaders_fails_at_once(cluster: Cluster) -> None:
    def refuse() -> None:
        raise NotAllowedError("kafka: the brokers refuse this client")

    cluster.answer = lambda node, place, data: NOT_ENOUGH_REPLICAS
    cluster.looking = refuse
    one = sender()
    put(one, ("t", 0))
    with pytest.raises(NotAllowedError):
        one.wait()


def test_all_topics_that_wait_are_looked_for(cluster: Cluster) -> None:
    lost = iter([Lost("disconnected", final=False)])
    cluster.answer = lambda node, place, data: next(lost, 0)
    one = sender()
    put(one, ("t", 0), ("other", 0))
    one.wait()
    assert cluster.looked == [{"t", "other"}]


def test_a_lost_answer_is_no_loss_and_no_repeat(cluster: Cluster) -> None:
    """The broker took it, and takes it for what it is when it comes again."""
    seen: set[tuple[int, int, int]] = set()

    def answer(node: int, place: Place, data: bytes) -> int | Lost:
        first_time = identity(data) not in seen
        seen.add(identity(data))
        if first_time:
            cluster.taken.setdefault(place, []).append(identity(data))
            return Lost("time-out", final=False)
        return 46  # DUPLICATE_SEQUENCE_NUMBER

    cluster.answer = answer
    one = sender()
    put(one, ("t", 0), ("t", 0), ("t", 0))
    one.wait()
    assert [number for _, _, number in cluster.taken[("t", 0)]] == [0, 1, 2]


def test_a_record_that_is_refused_is_named(cluster: Cluster) -> None:
    cluster.answer = lambda node, place, data: DENIED
    one = sender()
    put(one, ("t", 0))
    with pytest.raises(SinkError, match="writing to topic t is not allowed"):
        one.wait()
    with pytest.raises(SinkError, match="writing to topic t is not allowed"):
        one.wait()
