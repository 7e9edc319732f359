"""The driver's connections to a cluster: one set per cluster and process, kept from epoch to epoch."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TypeAlias

from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.sinks.kafka.markers import Markers
from tallystick.sinks.kafka.tokens import TokenReader


class Driver:
    """Made with a connection; `SinkError` if no broker answers."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._tokens: dict[str, TokenReader] = {}
        self.transactions = Transactions(settings)
        self.markers = Markers(self.transactions)

    def close(self) -> None:
        self.markers.close()
        for reader in self._tokens.values():
            reader.close()
        self.transactions.close()

    def tokens(self, topic: str) -> TokenReader:
        if topic not in self._tokens:
            self._tokens[topic] = TokenReader(self._settings, topic, self.transactions)
        return self._tokens[topic]


_Key: TypeAlias = tuple[int, str, tuple[tuple[str, str], ...]]


def _key(settings: KafkaSettings) -> _Key:
    return (os.getpid(), settings.servers, tuple(sorted(settings.options.items())))


class _Drivers:
    """The connections of this process, and when each prefix was last looked through for leftovers."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[_Key, Driver] = {}
        self._swept: dict[str, float] = {}

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

    def due(self, prefix: str, every_s: float) -> bool:
        now = time.monotonic()
        with self._guard:
            due = now - self._swept.get(prefix, -every_s) >= every_s
            if due:
                self._swept[prefix] = now
            return due


driver_for = _Drivers()
atexit.register(driver_for.close)
