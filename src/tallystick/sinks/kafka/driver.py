"""The driver's connections to a cluster: one set per cluster and process, kept from epoch to epoch.

Safe to use from several threads: what is done now and then is done beside the epochs.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.sinks.kafka.beside import Beside
from tallystick.sinks.kafka.markers import Markers
from tallystick.sinks.kafka.tokens import TokenReader

SWEEP_EVERY_S = 5.0


class Driver:
    """Made with a connection; `SinkError` if no broker answers."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._tokens: dict[str, TokenReader] = {}
        self.transactions = Transactions(settings)
        self.markers = Markers(self.transactions)
        self.beside = Beside("tallystick-sweep")
        self._swept: dict[str, float] = {}

    def close(self) -> None:
        self.markers.close()
        for reader in self._tokens.values():
            reader.close()
        self.transactions.close()

    def tokens(self, topic: str) -> TokenReader:
        with self._guard:
            if topic not in self._tokens:
                self._tokens[topic] = TokenReader(self._settings, topic, self.transactions)
            return self._tokens[topic]

    def now_and_then(self, prefix: str, sweep: Callable[[], None]) -> None:
        """Look through what is open with this prefix: at once with a new connection, then every few seconds, beside the
        epochs."""
        last_s, now_s = self._swept.get(prefix), time.monotonic()
        if last_s is not None and now_s - last_s < SWEEP_EVERY_S:
            return
        if last_s is None:
            sweep()
        elif not self.beside.start(sweep):
            return  # that of another prefix is under way: this one comes with the next epoch
        self._swept[prefix] = now_s


_Key: TypeAlias = tuple[int, str, tuple[tuple[str, str], ...]]


def _key(settings: KafkaSettings) -> _Key:
    return (os.getpid(), settings.servers, tuple(sorted(settings.options.items())))


class _Drivers:
    """The connections of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[_Key, Driver] = {}

    def __call__(self, settings: KafkaSettings) -> Driver:
        key = _key(settings)
        with self._guard:
            if key not in self._made:
                self._made[key] = Driver(settings)
            return self._made[key]

    def forget(self, settings: KafkaSettings) -> None:
        """Connect anew the next time."""
        with self._guard:
            dropped = self._made.pop(_key(settings), None)
        if dropped is not None:
            dropped.close()

    def close(self) -> None:
        """All of them: when the process ends, before the libraries that they run on do."""
        with self._guard:
            made = [driver for key, driver in self._made.items() if key[0] == os.getpid()]
            self._made.clear()
        for driver in made:
            driver.close()


driver_for = _Drivers()
atexit.register(driver_for.close)
