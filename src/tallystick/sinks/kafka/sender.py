"""Batches on their way to the brokers: the part of a producer that knows leaders, answers and epochs, and no rows.

Ending a transaction raises the epoch of its producer by one (EndTxn version 5), so that the next transaction of the
name can go on with that epoch: no request is needed to start it. If somebody else has used the name meanwhile, or the
last transaction was not ended or not by us, all brokers refuse the first batches; then the name is initialised, and
the same batches are sent under what that gives.

Answers come in on the connection's thread and are only put into a queue there: everything else happens on the thread
that sends.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from tallystick.errors import NotAllowedError, RowRefusedError, SinkError
from tallystick.kafka.connection import MOVED
from tallystick.kafka.writer import Lost, Taken, writer_for
from tallystick.sinks.kafka.batches import Body, Compression, resealed, sealed
from tallystick.sinks.kafka.outbox import Batch, Outbox
from tallystick.sinks.kafka.producer import INIT_TIMEOUT_S, LEFT_OPEN, UNKNOWN_TOPIC, Position, refused
from tallystick.sinks.kafka.producer_settings import ProducerSettings

log = logging.getLogger("tallystick.kafka")

REQUEST_BYTES = 4 << 20
ABORT_TIMEOUT_S = 10.0
ANSWER_WAIT_S = 0.2

DUPLICATE, INVALID_TOPIC = 46, 17
OUT_OF_ORDER = (45, 59)
"""OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID: of a batch that came before those that it follows."""
PASSING = frozenset((2, UNKNOWN_TOPIC, 5, 6, 7, 8, 9, 13, 19, 20, 51, 56, 72, 74, 75, 100, *MOVED))
"""Codes after which a batch is sent again: a leader moved, replicas lag, the transaction before is being completed …"""
TOPIC_GONE = (UNKNOWN_TOPIC, 100)
NOT_EXPECTED = (47, 48, 49, 59, 90)
"""INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED."""


class Sender:
    """Executor: one transaction. ``expected`` is the producer's id and epoch, if the name's last transaction leads to
    them; else the name is initialised now. `SinkError` if the brokers do not answer or refuse.
    """

    def __init__(self, settings: ProducerSettings, name: str, expected: tuple[int, int] | None) -> None:
        self.name = name
        self.partitions_named = False
        self.failure: SinkError | None = None
        self.unacknowledged_bytes = 0
        self.anything_sent = False
        self._settings = settings
        self._writer = writer_for(settings.kafka)
        self._expected = expected is not None
        self.producer_id, self.producer_epoch = expected or self._initialised()
        self._outboxes: dict[tuple[str, int], Outbox] = {}
        self._answers: queue.SimpleQueue[tuple[list[Batch], list[Taken] | Lost]] = queue.SimpleQueue()
        self._first: dict[tuple[str, int], Position] = {}
        self._under_way = 0
        self._anything_taken = self._refused_as_expected = False
        self._said = ""
        self._pause_until_s = 0.0
        self._progress_s = time.monotonic()
        self._missing_since_s: dict[str, float] = {}

    def begin(self) -> None:
        """One that waited for its turn may need another connection."""
        self._writer = writer_for(self._settings.kafka)
        self._progress_s = time.monotonic()

    def put(self, place: tuple[str, int], body: Body, compression: Compression, key: bytes | None, size: int) -> None:
        """Behind the other batches of that partition. ``key`` and ``size`` are of its largest record."""
        outbox = self._outboxes.setdefault(place, Outbox(self._settings.under_way_max))
        data = sealed(body.records, body.count, self.producer_id, self.producer_epoch, outbox.sequence, compression)
        outbox.put(Batch(place, data, body.count, key, size))
        self.unacknowledged_bytes += len(data)

    def wait(self) -> None:
        """Until all is acknowledged, or something has failed."""
        self._progress_s = time.monotonic()
        while any(self._outboxes.values()) and self.failure is None:
            self.exchange(ANSWER_WAIT_S)
        self.need_no_failure()

    def first_in(self, place: tuple[str, int]) -> Position | None:
        """Where the first record of that partition is, if it was acknowledged."""
        return self._first.get(place)

    def fits_one_request(self, also: tuple[str, int]) -> bool:
        """Whether all that is put, and a batch for that partition, can go out together."""
        nodes = {self._leader(place) for place in (*self._outboxes, also)}
        one_each = all(len(outbox) == 1 for outbox in self._outboxes.values()) and also not in self._outboxes
        return len(nodes) == 1 and None not in nodes and one_each and self.unacknowledged_bytes <= REQUEST_BYTES

    def abort(self) -> None:
        """What is still under way comes too late then, and is refused."""
        self.failed(SinkError(f"kafka: {self.name} was rolled back"))
        if not self.anything_sent:
            return
        try:
            self._writer.abort(self.name, self.producer_id, self.producer_epoch, ABORT_TIMEOUT_S)
        except SinkError as failure:
            log.warning("kafka: %s could not be rolled back: %s. %s", self.name, failure, LEFT_OPEN)

    def close(self) -> None:
        """The connection is not its own."""
        self._outboxes.clear()

    def partitions(self, topic: str) -> Sequence[int]:
        """Who leads each of them. A topic that is not there may be about to be made."""
        deadline = time.monotonic() + self._settings.topic_patience_s
        leaders = self._writer.leaders(topic, INIT_TIMEOUT_S, self._settings.create_topics)
        while leaders.error or not leaders.nodes:
            if leaders.error == INVALID_TOPIC:
                raise self.failed(RowRefusedError(f"kafka: {topic!r} cannot be the name of a topic"))
            if leaders.error not in PASSING or time.monotonic() > deadline:
                raise self.failed(refused(self.name, leaders.error, f"error {leaders.error}", topic, None, 0))
            time.sleep(self._settings.retry_pause_s)
            self._writer.look([topic], INIT_TIMEOUT_S)
            leaders = self._writer.leaders(topic, INIT_TIMEOUT_S)
        return leaders.nodes

    def look_at(self, topic: str) -> None:
        """Ask anew which partitions there are."""
        self._writer.look([topic], INIT_TIMEOUT_S)

    def exchange(self, wait_s: float) -> None:
        """Send what may be sent, and take the answers that are there, waiting for the first one at the most so long."""
        self._dispatch()
        if wait_s and self._under_way:
            with suppress(queue.Empty):
                self._take(*self._answers.get(timeout=wait_s))
        elif wait_s:
            time.sleep(min(wait_s, max(0.001, self._pause_until_s - time.monotonic())))
        with suppress(queue.Empty):
            while True:
                self._take(*self._answers.get_nowait())
        if wait_s and time.monotonic() - self._progress_s > self._settings.patience_s:
            self.failed(self._stalled())
        self._dispatch()

    def _dispatch(self) -> None:
        """As much as the outboxes give: for every broker a request with a batch for each of its partitions."""
        try:
            self._send_waiting()
        except SinkError as failure:
            raise self.failed(failure) from failure.__cause__

    def _send_waiting(self) -> None:
        if self.failure is not None or time.monotonic() < self._pause_until_s:
            return
        if self._refused_as_expected and (self._under_way or not self._started_anew()):
            return
        while True:
            by_node: dict[int, list[Batch]] = {}
            for place, outbox in self._outboxes.items():
                batch = outbox.next()
                node = None if batch is None else self._leader(place)
                if batch is not None and node is not None:
                    by_node.setdefault(node, []).append(batch)
            if not by_node:
                return
            for node, batches in by_node.items():
                for some in _requests(batches):
                    self._post(node, some)

    def _started_anew(self) -> bool:
        """If nothing of this transaction was taken: the same batches from a producer that nobody knows yet."""
        if self._anything_taken:
            self.failed(SinkError(f"kafka: {self.name}: some brokers took its records and others refused them"))
            return False
        self._expected = self._refused_as_expected = False
        self.producer_id, self.producer_epoch = self._initialised()
        for outbox in self._outboxes.values():
            outbox.resealed(lambda data: resealed(data, self.producer_id, self.producer_epoch))
        return True

    def _leader(self, place: tuple[str, int]) -> int | None:
        topic, number = place
        leaders = self._writer.leaders(topic, INIT_TIMEOUT_S)
        if number < len(leaders.nodes) and leaders.nodes[number] >= 0:
            return leaders.nodes[number]
        self._look_again(f"partition {number} of {topic} has no leader")
        if leaders.error in TOPIC_GONE:
            self._check_topic(topic, "the brokers do not know it")
        return None

    def _post(self, node: int, batches: list[Batch]) -> None:
        for batch in batches:
            self._outboxes[batch.place].sent(batch)
        self._under_way += 1
        self.anything_sent = True
        answers = self._answers
        self._writer.produce(
            node,
            self.name,
            [(batch.place, batch.data) for batch in batches],
            self._settings.replication_timeout_ms,
            lambda taken: answers.put((batches, taken)),
        )

    def _take(self, batches: list[Batch], answer: list[Taken] | Lost) -> None:
        self._under_way -= 1
        if isinstance(answer, Lost):
            for batch in batches:
                self._outboxes[batch.place].failed(batch)
            self._look_again(answer.text)
            if answer.final:
                self.failed(SinkError(f"kafka: {self.name}: the brokers refuse this client: {answer.text}"))
            return
        said = {one.place: one for one in answer}
        codes = {one.code for one in answer}
        if self._expected and 0 not in codes and not codes.isdisjoint(NOT_EXPECTED):
            for batch in batches:
                self._outboxes[batch.place].failed(batch)
            self._refused_as_expected = True
            return
        for batch in batches:
            self._took(batch, said.get(batch.place, Taken(batch.place, -1, -1, "the answer leaves it out")))

    def _took(self, batch: Batch, taken: Taken) -> None:
        outbox = self._outboxes[batch.place]
        if taken.code in (0, DUPLICATE):
            self._expected, self._anything_taken = False, True
            outbox.acknowledged(batch)
            self.unacknowledged_bytes -= len(batch.data)
            self._progress_s = time.monotonic()
            self._missing_since_s.pop(batch.place[0], None)
            self._first.setdefault(batch.place, Position(batch.place[1], taken.offset))
        elif taken.code in PASSING or (taken.code in OUT_OF_ORDER and not outbox.is_first(batch)):
            outbox.failed(batch)
            self._look_again(taken.text)
            if taken.code in TOPIC_GONE:
                self._check_topic(batch.place[0], taken.text)
        else:
            outbox.failed(batch)
            topic, size = batch.place[0], batch.value_bytes
            text = taken.text
            self.failed(refused(self.name, taken.code, text, topic, batch.key, size, self.partitions_named))

    def _check_topic(self, topic: str, text: str) -> None:
        """A topic that was just made is not known to all brokers at once; one that is gone stays unknown."""
        since_s = self._missing_since_s.setdefault(topic, time.monotonic())
        if time.monotonic() - since_s > self._settings.topic_patience_s:
            self.failed(refused(self.name, UNKNOWN_TOPIC, text, topic, None, 0))

    def _look_again(self, why: str) -> None:
        """Something is not where it was: ask where it is now, and go on in a moment."""
        self._said = why
        if time.monotonic() < self._pause_until_s:
            return
        topics = {place[0] for place, outbox in self._outboxes.items() if len(outbox)}
        try:
            self._writer.look(topics, self._settings.retry_pause_s)
        except NotAllowedError as denied:
            self.failed(denied)
        except SinkError as failure:
            self._said = str(failure)
        self._pause_until_s = time.monotonic() + self._settings.retry_pause_s

    def _stalled(self) -> SinkError:
        """The brokers have rolled the transaction back by now."""
        missing = sum(1 for outbox in self._outboxes.values() if len(outbox))
        return SinkError(
            f"kafka: {self.name}: records for {missing} partitions are neither taken nor refused after "
            f"{self._settings.patience_s:g} s ({self._said or 'no answer'}). look at the brokers and whether the topic "
            "is still there"
        )

    def failed(self, failure: SinkError) -> SinkError:
        """From now on `wait` says so too: a transaction that misses a record must not be voted for."""
        self.failure = self.failure or failure
        return failure

    def need_no_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _initialised(self) -> tuple[int, int]:
        return self._writer.initialise(self.name, self._settings.transaction_timeout_ms, INIT_TIMEOUT_S)


def _requests(batches: list[Batch]) -> Iterator[list[Batch]]:
    """One batch at least in each, and not many bytes more than a request should have."""
    some: list[Batch] = []
    size = 0
    for batch in batches:
        if some and size + len(batch.data) > REQUEST_BYTES:
            yield some
            some, size = [], 0
        some.append(batch)
        size += len(batch.data)
    if some:
        yield some
