"""Markers that brokers forgot.

Kafka ends a transaction in two steps: its coordinator notes the end and answers, then it has a marker written into each
partition. A coordinator that finds a partition without a leader in between takes it for deleted and leaves it out
(4.3.1: "these partitions are likely deleted already"). With a sole broker that is killed after its answer that happened
in seven of ten tries. In its books the transaction is complete then; in the partition it is open for ever, so readers
of committed records stop before it. Worse, the next transaction under the same name joins it there, and if that one is
aborted, rows that were committed are gone.

So a name is not used again before its transaction is seen to be over:

1.  What was ended is asked for until its coordinator calls it complete, in the background, from the moment of the
    answer. `settle` waits for that, before the next epoch writes.
2.  *Looked through* are all partitions of the sink, if anything may have happened to a broker: at the first epoch of a
    driver, after a connection was lost, and when 1. took long. A transaction that is open in a partition, although its
    coordinator said before that it is complete, gets its marker from us.
3.  *Every few seconds* somebody looks anyway, beside the epoch, so that none is longer for it. What is found then is
    put right by 2., before the next epoch writes. That an epoch is on its way meanwhile misleads nobody: a transaction
    counts as forgotten only with the epoch that its end raised, and a later one of the same name has a higher one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResultYet
from dataclasses import dataclass
from typing import Any

from tallystick.errors import NotAllowedError, SinkError
from tallystick.kafka.transactions import Found, Transactions, Writing
from tallystick.sinks.kafka.beside import Beside

log = logging.getLogger("tallystick.kafka")

COMPLETE = {"CompleteCommit": True, "CompleteAbort": False}
ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
WRITTEN_S = 0.005
"""Markers were seen 3 to 12 ms after the answer: to ask at once would only keep the broker from writing them."""
PATIENCE_S = 60.0
LONG_S = 1.0
LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Forgotten:
    """A transaction that is open on this partition only."""

    name: str
    place: tuple[str, int]
    open_there: Writing
    commit: bool


class Markers:
    """Driver: the ends of the transactions of one cluster, of one process."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._closed = threading.Event()
        self._guard = threading.Lock()
        self._under_way: list[Future[float]] = []
        self._topics: dict[str, set[str]] = {}
        self._connections: frozenset[Any] = frozenset()
        self._looked: dict[str, float] = {}
        self._may_not_look: set[str] = set()
        self.beside = Beside("tallystick-markers-look")
        self._suspected: set[str] = set()

    def close(self) -> None:
        self._closed.set()

    def wrote(self, prefix: str, topics: Iterable[str]) -> None:
        """Transactions with this prefix write to these topics, too."""
        self._topics.setdefault(prefix, set()).update(topics)

    def ended(self, names: Iterable[str]) -> None:
        """These transactions were ended now; see to it that they are complete, in the background."""
        asked, complete = sorted(set(names)), Future[float]()

        def wait() -> None:
            try:
                self._closed.wait(WRITTEN_S)
                complete.set_result(self._until_complete(lambda: self._transactions.describe(asked)))
            except BaseException as failure:  # noqa: BLE001 - `settle` raises it
                complete.set_exception(failure)

        with self._guard:
            self._under_way.append(complete)
        threading.Thread(target=wait, name="tallystick-markers", daemon=True).start()

    def start(self, prefix: str) -> None:
        """A driver begins: what another one left is not known."""
        self._looked.pop(prefix, None)

    def settle(self, prefix: str) -> None:
        """Returns when every name with this prefix may be used again. `SinkError` if that cannot be said."""
        with self._guard:
            under_way, self._under_way = self._under_way, []
        last_s, now_s = self._looked.pop(prefix, None), time.monotonic()
        try:
            took_s = max((one.result(2 * PATIENCE_S) for one in under_way), default=0.0)
        except NoResultYet as cause:
            raise SinkError("kafka: the brokers do not say whether transactions have ended: start again") from cause
        connected = self._transactions.connections()
        lost, self._connections = self._connections - connected, connected
        if lost or took_s > LONG_S:
            self._looked.clear()  # other prefixes are of the same brokers
            last_s = None
        if last_s is None or prefix in self._suspected:
            self._suspected.discard(prefix)
            self._until_complete(lambda: self._transactions.known(prefix))
            for one in self.forgotten(prefix):
                self._write(one)
            last_s = now_s
        elif now_s - last_s > LOOK_EVERY_S and self.beside.start(lambda: self._look_beside(prefix)):
            last_s = now_s
        self._looked[prefix] = last_s

    def _look_beside(self, prefix: str) -> None:
        try:
            found = any(True for _ in self.forgotten(prefix))
        except Exception as failure:  # noqa: BLE001 - whatever it is, also a connection that was closed: `settle` meets it
            log.info("kafka: markers could not be looked for beside an epoch, so before the next one: %r", failure)
            found = True
        if found:
            self._suspected.add(prefix)

    def forgotten(self, prefix: str) -> Iterator[Forgotten]:
        """First the coordinators' books, then the partitions: what is complete in the former is over in the latter."""
        complete = {found.producer_id: found for found in self._transactions.known(prefix) if found.state in COMPLETE}
        for topic in sorted(self._topics.get(prefix, set()) - self._may_not_look):
            for place, states in self._writing(topic).items():
                for state in states:
                    found = complete.get(state.producer_id)
                    # its end raised the epoch by one; with any other epoch it is another transaction
                    if found is not None and found.producer_epoch == state.producer_epoch + 1:
                        yield Forgotten(found.name, place, state, COMPLETE[found.state])

    def _writing(self, topic: str) -> dict[tuple[str, int], list[Writing]]:
        try:
            return self._transactions.writing(self._transactions.partitions([topic]))
        except NotAllowedError:
            self._may_not_look.add(topic)
            log.warning(
                "kafka: this user may not read topic %s, so a commit that a broker forgets in a crash is not noticed "
                "there: grant READ on it",
                topic,
            )
            return {}

    def _write(self, one: Forgotten) -> None:
        what = "commit" if one.commit else "rollback"
        where = f"{one.place[0]} partition {one.place[1]}"
        refused = self._transactions.write_marker(one.place, one.open_there, one.commit)
        if not refused:
            log.warning(
                "kafka: a broker had forgotten the %s of %s in %s; it is noted there now", what, one.name, where
            )
            return
        right = "grant CLUSTER_ACTION on the cluster to this user, at least for a while, and "
        needed = right if "Authorization" in refused else ""
        raise SinkError(
            f"kafka: a broker has forgotten the {what} of {one.name} in {where}, which keeps its readers waiting, and "
            f"it could not be noted there ({refused}). nothing is lost: do not abort it with Kafka's tools, that would "
            f"drop rows. {needed}start again"
        )

    def _until_complete(self, look: Callable[[], list[Found]]) -> float:
        """Until no transaction is about to end. Returns how long that took, in seconds."""
        began, pause_s = time.monotonic(), 0.002
        while True:
            try:
                ending = [found.name for found in look() if found.state in ENDING]
                why = f"the first is {ending[0]}" if ending else ""
            except NotAllowedError as denied:
                raise SinkError(
                    f"kafka: nobody can tell whether transactions have ended: {denied}. grant DESCRIBE and WRITE on "
                    "the transactional ids"
                ) from denied
            except (SinkError, RuntimeError) as failure:  # RuntimeError: kafka-python's own thread has ended
                why = str(failure)
            took_s = time.monotonic() - began
            if not why:
                return took_s
            if took_s > PATIENCE_S or self._closed.is_set():
                raise SinkError(
                    f"kafka: transactions were ended, but that has not come to all partitions after {took_s:.0f} s: "
                    f"{why}. nothing is lost: look at the brokers, and start again"
                )
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, 0.5)
