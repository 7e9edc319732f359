"""Work that is done beside the epochs, so that none is longer for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """One piece of work at a time: where brokers answer slowly, the next one is left out."""

    def __init__(self, name: str) -> None:
        self.begun = 0
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> bool:
        """False if another one is under way. ``work`` lets no error out: nobody would get it."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()
        self.begun += 1
        return True

    def wait(self, timeout_s: float) -> bool:
        """Until nothing is under way. False if that took too long, or if nothing was ever begun."""
        if self._thread is None:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
