"""Ctrl-C and SIGTERM end a job between two epochs.

The main thread sits in Spark's ``awaitTermination``. Raising there would leave the epoch half way: safe, because a
restart settles it, but not clean. So the first signal only wakes a thread that lets the running epoch come to its end
and then stops the query, upon which the main thread returns by itself. A second signal does not wait.

The kernel may hand a signal to any thread. If that is not the main one, it sleeps on, and Python runs no handler before
it wakes up: such a job would never stop. But whichever thread has it, Python writes the signal's number to a descriptor
at once (``signal.set_wakeup_fd``), and that is what the stopping thread waits for.
"""

from __future__ import annotations

import _thread
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EPOCH_PATIENCE_S = 60.0
START_PATIENCE_S = 2.0
POLL_S = 0.02
SIGNALS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class Stopper:
    """A context around a run. ``told`` is called once, when a stop is asked for.

    Until `watch` is called there is no epoch to wait for: a signal ends the run at once.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        self.asked = False
        self._told = told
        self._spark: SparkSession | None = None
        self._thread: threading.Thread | None = None
        self._handled = False
        self._arrived, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakes_before = -1

    def __enter__(self) -> Stopper:
        self._wakes_before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakes_before)
        self._writes.close()  # the thread, if it still waits, ends

    def watch(self, spark: SparkSession) -> None:
        """From here on, queries of this session are stopped between two epochs."""
        self._spark = spark
        name = "tallystick-stopper"
        self._thread = threading.Thread(target=self._stop_when_asked, args=(spark,), name=name, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until a stop that is under way is through: the session must live until then."""
        if self.asked and self._thread is not None:
            self._thread.join(EPOCH_PATIENCE_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. No call to the JVM from here: it may be in the middle of one."""
        if self._handled or self._spark is None:
            raise KeyboardInterrupt
        self._handled = self.asked = True

    def _stop_when_asked(self, spark: SparkSession) -> None:
        from tallystick.spark.stopping import stop_after_epoch

        while not (arrived := self._arrived.recv(1)) or arrived[0] not in SIGNALS:
            if not arrived:
                return
        self.asked = True
        self._told()
        queries = _queries(spark)
        if not queries:  # between two restarts: there is nothing to wait for
            self._handled = True
            _thread.interrupt_main()
        for query in queries:
            stop_after_epoch(query)


def in_thread(make: Callable[[], T]) -> T:
    """Call it in another thread and wait: a signal gets through while it runs.

    Spark installs a handler of its own for Ctrl-C if a session is made in the main thread. That one cancels tasks,
    which fails the running epoch, and calls the JVM from inside a signal, which confuses both.
    """
    answers: list[T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(make())
        except BaseException as failure:  # noqa: BLE001 - raised again below, in the thread that waits
            failures.append(failure)

    thread = threading.Thread(target=work, name="tallystick-start", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
    if failures:
        raise failures[0]
    return answers[0]


def _queries(spark: SparkSession) -> list[StreamingQuery]:
    """Those that run; if none does, one may be about to."""
    deadline = time.monotonic() + START_PATIENCE_S
    while not (queries := spark.streams.active) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return queries
