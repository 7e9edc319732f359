"""Producers that are ready before they are needed.

A producer that goes on where the last transaction of its name ended is there at once: it is kept for a later epoch,
when that transaction is settled. For those that cannot (``ahead``), to connect and initialise a name takes 60 to 700
ms, a transaction a tenth of that. So each worker makes the ones for its next slices in the background, while the driver
decides and commits, and throws the used ones away there too.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tallystick.errors import SinkError
from tallystick.records import Attempt
from tallystick.sinks.kafka.names import Slot
from tallystick.sinks.kafka.producer import Producer

log = logging.getLogger("tallystick.kafka")

AHEAD = 2
"""As many more than an epoch used are kept ready: to make one may take longer than a short epoch."""
READY_MAX = 64
IDLE_S = 300.0
HELPERS = 4
SERVE_EVERY_S = 1.0
CLOSE_PATIENCE_S = 10.0


@dataclass
class Pool:
    """Executor: the producers of one sink in one worker process."""

    slot: Slot
    make: Callable[[str], Producer]
    ahead: bool = True
    _successors: dict[str, Producer] = field(default_factory=dict)
    _ready: list[tuple[float, Producer]] = field(default_factory=list)
    _making: int = 0
    _epoch: int = -1
    _used: int = 0
    _used_before: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _work: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)
    _under_way: int = 0
    _helpers: list[threading.Thread] = field(default_factory=list)
    _closed: bool = False

    def take(self, attempt: Attempt) -> Producer:
        """A producer for one transaction of this attempt: one that is ready, or is about to be, or a new one."""
        with self._changed:
            self._count(attempt.epoch)
            while not self._ready and self._making:
                self._changed.wait(0.5)
            producer = self._ready.pop(0)[1] if self._ready else None
        if producer is None:
            name = self.slot.take(attempt)
            try:
                producer = self._successors.pop(name, None) or self.make(name)
            except BaseException:
                self.slot.give_back(name)
                raise
        self.slot.use(producer.name, attempt)
        return producer

    def done(self, producer: Producer, attempt: Attempt) -> None:
        """Its transaction is out of our hands. Get others ready for the next epoch."""
        successor = producer.successor()
        if successor is not None:
            self._successors[producer.name] = successor
        self.slot.give_back(producer.name)
        if self.ahead:
            self._make_more(attempt)
            self._later(producer.close)
        else:
            producer.close()

    def _make_more(self, attempt: Attempt) -> None:
        with self._changed:
            wanted = min(max(self._used, self._used_before) + AHEAD, READY_MAX)
            missing = max(0, wanted - len(self._ready) - self._making)
            self._making += missing
        for _ in range(missing):
            self._later(lambda: self._make_ready(attempt))

    def close(self) -> None:
        """Nobody will ask for a producer again: give up those that wait, and those that are still being made."""
        with self._changed:
            self._closed = True
            left, self._ready = self._ready, []
        for _, producer in left:
            self._give_up(producer)
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, CLOSE_PATIENCE_S)

    def _count(self, epoch: int) -> None:
        """How many transactions this worker has in an epoch."""
        if epoch != self._epoch:
            self._epoch, self._used, self._used_before = epoch, 0, self._used
        self._used += 1

    def _make_ready(self, attempt: Attempt) -> None:
        name, producer = self.slot.take(attempt), None
        try:
            producer = self.make(name)
        except SinkError as failure:
            log.info("no producer could be made in advance: %s", failure)
        finally:
            if producer is None:
                self.slot.give_back(name)
            with self._changed:
                self._making -= 1
                late = self._closed
                if producer is not None and not late:
                    self._ready.append((time.monotonic(), producer))
                self._changed.notify_all()
            if producer is not None and late:
                self._give_up(producer)

    def _later(self, call: Callable[[], None]) -> None:
        with self._changed:
            self._under_way += 1
            self._work.put(call)
            self._helpers = [helper for helper in self._helpers if helper.is_alive()]
            while len(self._helpers) < HELPERS:
                helper = threading.Thread(target=self._help, name="tallystick-kafka", daemon=True)
                self._helpers.append(helper)
                helper.start()

    def _help(self) -> None:
        """Work until there is neither work nor a producer that waits."""
        while True:
            try:
                call = self._work.get(timeout=SERVE_EVERY_S)
            except queue.Empty:
                self._serve_idle()
                with self._changed:
                    if not self._ready and not self._under_way:
                        self._helpers.remove(threading.current_thread())
                        return
                continue
            try:
                call()
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()

    def _serve_idle(self) -> None:
        """Nothing may pile up in producers that wait, and those that waited long are given up."""
        now = time.monotonic()
        with self._changed:
            old = [producer for since, producer in self._ready if now - since > IDLE_S]
            self._ready = [entry for entry in self._ready if now - entry[0] <= IDLE_S]
            for _, producer in self._ready:
                producer.idle()
        for producer in old:
            self._give_up(producer)

    def _give_up(self, producer: Producer) -> None:
        producer.close()
        self.slot.give_back(producer.name)


_pools: dict[Hashable, Pool] = {}
_guard = threading.Lock()


def pool_for(prefix: str, key: Hashable, make: Callable[[str], Producer], ahead: bool) -> Pool:
    """The pool of this process; ``key`` tells settings apart that a warm producer was made with."""
    with _guard:
        found = _pools.get(key)
        if found is None:
            found = _pools[key] = Pool(Slot(prefix), make, ahead)
        return found


def close_pools() -> None:
    """Give up every producer of this process that waits for its turn.

    Also when the process ends: librdkafka's threads would go on while the libraries under them are taken down, which
    crashed one process in a few.
    """
    with _guard:
        closed = list(_pools.values())
        _pools.clear()
    for pool in closed:
        pool.close()


atexit.register(close_pools)
