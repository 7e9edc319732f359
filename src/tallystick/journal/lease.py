"""Who leads a job, and whether he still lives: terms and beats. Why it is so: docs/decisions/0009-standby-by-lease.md.

::

    terms/0000002.json                       claimed once, by put-if-absent; the highest one leads
    beats/0000002.000000000042.json          the leader lives; each new beat replaces the one before
    requests/0000002.stop.json               somebody asks the leader of that term to stop between two epochs

No time in them is ever compared: whoever watches measures how long the newest beat has not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.errors import JournalCorruptError, JournalError
from tallystick.journal.codec import decode, encode
from tallystick.journal.store import Store
from tallystick.records import Json

TERMS_KEPT = 100
_BEAT = re.compile(r"([0-9]{7,})\.([0-9]{12,})\.json")
_STOP = re.compile(r"([0-9]{7,})\.stop\.json")
_TERM = re.compile(r"([0-9]{7,})\.json")


@dataclass(frozen=True, order=True)
class Beat:
    """The sign of life number ``number`` of the leader of a term."""

    term: int
    number: int

    @property
    def key(self) -> str:
        return f"beats/{self.term:07d}.{self.number:012d}.json"


class Leases:
    """The terms and beats of one journal."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def term(self) -> int:
        """The highest term that was claimed, 0 if none was."""
        return max((self._parse("terms", name, _TERM)[0] for name in self._store.list("terms")), default=0)

    def holder(self, term: int) -> Json:
        """Who claimed a term; None if it is not listed."""
        key = self._term_key(term)
        data = self._store.read(key)
        return None if data is None else decode("term", data, self._store.locate(key))

    def claim(self, who: Mapping[str, Json], after: int | None = None) -> int | None:
        """Claim the term after ``after``, or the next free one. None if somebody else has the one after ``after``."""
        for _ in range(1000):
            number = (self.term() if after is None else after) + 1
            if self._store.put_if_absent(self._term_key(number), encode("term", {**who, "term": number})):
                self._forget(number)
                return number
            if after is not None:
                return None
        raise JournalError(f"no term could be claimed in {self._store.locate('terms')} in 1000 tries")

    def superseded(self, term: int) -> bool:
        """Whether a later term was claimed. One look; for a term that is long over ask `term`."""
        return self._store.read(self._term_key(term + 1)) is not None

    def newest(self) -> Beat | None:
        """The newest sign of life of the highest term."""
        beats = [Beat(*self._parse("beats", name, _BEAT)) for name in self._store.list("beats")]
        return max(beats, default=None)

    def beat(self, beat: Beat, who: Mapping[str, Json]) -> None:
        """Show that the leader of this term lives. The beat before is not needed any more."""
        self._store.put_if_absent(beat.key, encode("beat", dict(who)))
        if beat.number > 1:
            self._store.delete(Beat(beat.term, beat.number - 1).key)

    def request_stop(self, term: int, who: Mapping[str, Json]) -> None:
        """Ask the leader of a term, wherever he is, to stop. He sees it with his next beat."""
        self._store.put_if_absent(self._stop_key(term), encode("request", dict(who)))

    def stop_requested(self, term: int) -> bool:
        return self._store.read(self._stop_key(term)) is not None

    def _forget(self, term: int) -> None:
        """Beats of earlier terms, and claims that are too old to stop anybody."""
        for name in self._store.list("beats"):
            if self._parse("beats", name, _BEAT)[0] < term:
                self._store.delete(f"beats/{name}")
        for name in self._store.list("terms"):
            if self._parse("terms", name, _TERM)[0] < term - TERMS_KEPT:
                self._store.delete(f"terms/{name}")
        for name in self._store.list("requests"):
            if self._parse("requests", name, _STOP)[0] < term:
                self._store.delete(f"requests/{name}")

    def _parse(self, folder: str, name: str, shape: re.Pattern[str]) -> tuple[int, ...]:
        match = shape.fullmatch(name)
        if match is None:
            where = self._store.locate(f"{folder}/{name}")
            raise JournalCorruptError(f"{where} is no file of the journal: move it away, then start again", file=where)
        return tuple(int(number) for number in match.groups())

    @staticmethod
    def _stop_key(term: int) -> str:
        return f"requests/{term:07d}.stop.json"

    @staticmethod
    def _term_key(term: int) -> str:
        return f"terms/{term:07d}.json"
