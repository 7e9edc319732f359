"""What broadcast states held, from which epoch on: the journal's ``rules/EPOCH.NAME.json``.

Written once, before the epoch's slices, and never changed: whoever does the epoch again finds the same rules. An epoch
that changes no rule writes none; the newest one before it counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tallystick.errors import JournalCorruptError, JournalError
from tallystick.journal.codec import decode, encode
from tallystick.journal.store import Store
from tallystick.records import Json

FOLDER = "rules"
_NAME = re.compile(r"(?P<epoch>[0-9]{12,})\.(?P<state>[A-Za-z0-9_-]+)\.json")


@dataclass(frozen=True)
class RuleSet:
    """All rules of one broadcast state, from an epoch on. Keys and rules are JSON texts, as Spark wrote them.

    ``offset`` is how far the control stream was read by then, as Spark logs it.
    """

    state: str
    epoch: int
    offset: Json
    rules: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Over all keys and rules, whatever their order."""
        canonical = json.dumps(dict(self.rules), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    @property
    def key(self) -> str:
        return f"{FOLDER}/{self.epoch:012d}.{self.state}.json"

    def to_json(self) -> Json:
        return {
            "state": self.state,
            "epoch": self.epoch,
            "offset": self.offset,
            "digest": self.digest,
            "rules": dict(self.rules),
        }


class RuleSets:
    """Driver: the rule sets of one journal."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, found: RuleSet) -> RuleSet:
        """Write it unless there is one for this epoch; returns the one that stands."""
        try:
            self._store.put_if_absent(found.key, encode("rules", found.to_json()))
        except JournalError:
            if self._store.read(found.key) is None:  # an error leaves it open: only reading it back can settle it
                raise
        return self._read(found.key, found.state, found.epoch)

    def newest(self, state: str, epoch: int) -> RuleSet | None:
        """What counts in this epoch, as far as it is written; None if there is nothing so far."""
        known = [number for number in self.epochs(state) if number <= epoch]
        return self._read(RuleSet(state, known[-1], None).key, state, known[-1]) if known else None

    def states(self) -> list[str]:
        return sorted({state for state, _ in self._listed()})

    def epochs(self, state: str) -> list[int]:
        """In which epochs the rules changed, as far as they are kept."""
        return sorted(epoch for name, epoch in self._listed() if name == state)

    def _listed(self) -> list[tuple[str, int]]:
        found = []
        for name in self._store.list(FOLDER):
            match = _NAME.fullmatch(name)
            if match is None:
                where = self._store.locate(f"{FOLDER}/{name}")
                raise JournalCorruptError(
                    f"{where} is no file of the journal: move it away, then start again", file=where
                )
            found.append((match["state"], int(match["epoch"])))
        return found

    def prune(self, state: str, epoch: int) -> None:
        """Remove what no epoch from this one on can need."""
        known = [number for number in self.epochs(state) if number <= epoch]
        for number in known[:-1]:
            self._store.delete(RuleSet(state, number, None).key)

    def locate(self, found: RuleSet) -> str:
        return self._store.locate(found.key)

    def _read(self, key: str, state: str, epoch: int) -> RuleSet:
        where = self._store.locate(key)
        data = self._store.read(key)
        if data is None:
            raise JournalError(f"{where} vanished: does another process clean up this journal?", file=where)
        body = decode("rules", data, where)
        try:
            found = RuleSet(str(body["state"]), int(body["epoch"]), body["offset"], dict(body["rules"]))
            right = (found.state, found.epoch, found.digest) == (state, epoch, body["digest"])
        except (LookupError, TypeError, ValueError) as cause:
            raise JournalCorruptError(
                f"{where} makes no sense ({type(cause).__name__}: {cause}): restore it from a copy of the checkpoint",
                file=where,
            ) from cause
        if not right:
            raise JournalCorruptError(
                f"{where} holds the rules of {found.state!r} at epoch {found.epoch}: was it renamed or changed? "
                "restore it from a copy of the checkpoint",
                file=where,
            )
        return found
