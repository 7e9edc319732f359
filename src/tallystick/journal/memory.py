"""The journal store to read first: a dictionary. For tests; it is gone with the process."""

from __future__ import annotations

import threading

from tallystick.journal.store import Store


class MemoryStore(Store):
    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._guard = threading.Lock()
        self._locked = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._guard:
            if key in self._data:
                return False
            self._data[key] = data
            return True

    def read(self, key: str) -> bytes | None:
        return self._data.get(key)

    def list(self, folder: str) -> list[str]:
        prefix = folder + "/"
        return sorted(key.removeprefix(prefix) for key in self._data if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self._data.pop(key, None)

    def locate(self, key: str) -> str:
        return f"memory:{key}"

    def try_lock(self) -> bool:
        with self._guard:
            taken, self._locked = self._locked, True
            return not taken

    def unlock(self) -> None:
        self._locked = False
