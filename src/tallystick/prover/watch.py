"""Two pairs of eyes that are open all along: one on the outputs, as any reader has, one on the journal."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tallystick.errors import SinkError
from tallystick.prover.history import LAST, WATCHER, HistoryFile
from tallystick.prover.place import Place
from tallystick.prover.readers import Item, Reader
from tallystick.prover.sight import Sight
from tallystick.records import Attempt, Json

PERIOD_S = 0.2
HEARTBEAT_S = 1.0
LOOK_S = 30.0


class Watcher:
    """A thread that reads until it is stopped. A context manager.

    ``readers`` makes the readers anew, because some are bound to the thread or connection that they were made in.
    """

    def __init__(
        self, place: Place, history: HistoryFile, readers: Callable[[], Mapping[str, Reader]], keys: frozenset[str]
    ) -> None:
        self.looks = 0
        self._place, self._history, self._make, self._keys = place, history, readers, keys
        self._journal = JournalWatch(place, history)
        self._sights: dict[str, Sight] = {}
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="watcher")
        self._watching: Future[None] | None = None

    @property
    def journal(self) -> JournalWatch:
        return self._journal

    def __enter__(self) -> Watcher:
        self._watching = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._pool.shutdown()

    def await_look(self) -> None:
        """Until everything that is visible now was seen: what is seen later is newer."""
        wanted, deadline = self.looks + 2, time.monotonic() + LOOK_S
        while self.looks < wanted and not self._ended() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _ended(self) -> bool:
        return self._watching is None or self._watching.done()

    def finish(self) -> None:
        """When no job runs any more: a last look at the journal, and a fresh reader over every output.

        Raises whatever ended the watching too early: a history with a gap is no evidence.
        """
        self._closing.set()
        if self._watching is not None:
            self._watching.result()
        self._journal.look()
        readers = self._make()
        try:
            for name, reader in readers.items():
                began = time.time()
                try:
                    reader.settle()
                    found = reader.read()
                except SinkError as failure:
                    self._history.add("failed", sink=name, why=str(failure))
                    continue
                whole = {place: self._lines(items) for place, items in found.items()}
                self._history.add("read", reader=LAST, sink=name, began=began, new=whole)
        finally:
            for reader in readers.values():
                reader.close()

    def _run(self) -> None:
        readers = self._make()
        try:
            self._sights = {name: Sight() for name in readers}
            while not self._closing.wait(PERIOD_S):
                self._journal.look()
                for name, reader in readers.items():
                    self._look(name, reader)
                self.looks += 1
        finally:
            for reader in readers.values():
                reader.close()

    def _look(self, name: str, reader: Reader) -> None:
        sight, began = self._sights[name], time.time()
        try:
            new, gone = sight.difference(reader.read())
        except SinkError as failure:
            self._history.add("failed", sink=name, why=str(failure))
            return
        if new or gone or began - sight.noted_at > HEARTBEAT_S:
            sight.noted_at = began
            lines = {place: self._lines(items) for place, items in new.items()}
            self._history.add("read", reader=WATCHER, sink=name, began=began, new=lines, gone=gone)

    def _lines(self, items: Sequence[Item]) -> Json:
        return [[item.row, key_of(item, self._keys)] for item in items]


class JournalWatch:
    """Notes each decision and each settled epoch once, with the time of its file, before it is rolled up."""

    def __init__(self, place: Place, history: HistoryFile) -> None:
        self.commits = 0
        self.generations = 0
        self._place, self._history = place, history
        self._seen: set[Path] = set()

    def look(self) -> None:
        for path in _files(self._place.journal / "attempts", r"\d+\.\d+\.json"):
            if path not in self._seen and (when := _time(path)) is not None:
                self._decided(path, when)
        for path in _files(self._place.checkpoint / "commits", r"\d+"):
            if path not in self._seen and (when := _time(path)) is not None:
                self._seen.add(path)
                self._history.add("settled", epoch=int(path.name), when=when)
        self.generations = len(_files(self._place.journal / "generations", r"\d+\.json"))

    def _decided(self, path: Path, when: float) -> None:
        from tallystick.journal.codec import decode

        try:
            body = decode("attempt", path.read_bytes(), str(path))
        except FileNotFoundError:  # rolled up since it was listed
            return
        self._seen.add(path)
        attempt = Attempt.parse(body["attempt"])
        if body["decision"] == "COMMIT":
            self.commits += 1
        self._history.add(
            "decided", epoch=attempt.epoch, generation=attempt.generation, decision=body["decision"], when=when
        )


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if re.fullmatch(pattern, path.name))
    except FileNotFoundError:  # not there yet
        return []


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def key_of(item: Item, keys: frozenset[str]) -> str | None:
    """The key of the workload that a row speaks of; for one that speaks of none, the key that its sink knows."""
    for found in re.findall(r"key_\d{3}", f"{item.key} {item.row}"):
        if found in keys:
            return str(found)
    return item.key
