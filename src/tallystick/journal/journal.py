"""The journal of one job: who it is, who has driven it, and what was decided. Lives inside the checkpoint location.

::

    job.json                                   whose checkpoint this is; created once
    generations/0000003.json                   one file per start of a driver
    attempts/000000000012.0000003.json         one decision per attempt: the commit point
    notes/000000000012.0000003.KIND.json       findings about an attempt
    resolutions/000000000012.json              what a person chose for an epoch in conflict
    audit/000000000000-000000000099.jsonl      decisions of long settled epochs, rolled up (`audit.py`)

Decisions never change, so what was read once is kept in memory and each epoch reads only what is new.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tallystick.errors import ForeignCheckpointError, JournalCorruptError, JournalError, TallystickError
from tallystick.journal.codec import decode, encode
from tallystick.journal.store import Store
from tallystick.records import Attempt, Decision, Json, Record, Resolution

V = TypeVar("V")


@dataclass(frozen=True)
class JobIdentity:
    """Whose checkpoint this is. ``id`` is in every transaction name, so that jobs never touch each other's."""

    job: str
    id: str


@dataclass(frozen=True)
class Note:
    """A finding about an attempt, for people and for the audit."""

    attempt: Attempt
    kind: str
    details: Mapping[str, Json]


class Journal:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[str, Record] = {}
        self._first_epochs: dict[int, int] = {}

    def identity(self) -> JobIdentity | None:
        """Whose checkpoint this is, or None if no driver has started on it yet."""
        return self._parsed("job", "job.json", lambda body: JobIdentity(body["job"], body["id"]))

    def identify(self, job: str | None) -> JobIdentity:
        """Claim the checkpoint for a job, or check that it is that job's. Without a name, take whoever owns it."""
        known = self.identity()
        if known is None:
            mine = {"job": job or "unnamed", "id": uuid.uuid4().hex[:12]}
            self._create("job", "job.json", mine)
            known = self.identity()
            if known is None:
                raise JournalError(f"{self.store.locate('job.json')} vanished after it was written")
        if job is not None and known.job != job:
            raise ForeignCheckpointError(
                f"{self.store.locate('job.json')} says that this checkpoint belongs to the job {known.job!r}, not to "
                f"{job!r}. nothing was written. give each job a checkpoint of its own"
            )
        return known

    def check(self) -> None:
        """Read all that a driver reads, before it writes anything: what is torn, foreign or newer is an error now."""
        self.rivals(sys.maxsize)

    def generations(self) -> list[int]:
        """The generations that were claimed and are still listed, oldest first."""
        return [self._number("generations", name) for name in self.store.list("generations")]

    def generation(self, number: int) -> Json:
        """Who claimed a generation: host, process, version, mode; None if it is not listed any more."""
        return self._read("generation", f"generations/{number:07d}.json")

    def claim_generation(self, who: Mapping[str, Json], first_epoch: int) -> int:
        """Start a new generation of the driver: a number that no other driver has or will have.

        ``first_epoch`` is where this driver begins. Claim it inside that epoch, when Spark has read its commit log:
        a driver that claimed before could begin behind the ABORT that was meant to stop it.
        """
        for _ in range(1000):
            tried = [attempt.generation for attempt in self._attempts()]
            number = max([0, *self.generations(), *tried]) + 1
            claim = {**who, "generation": number, "first_epoch": first_epoch}
            if self._create("generation", f"generations/{number:07d}.json", claim):
                return number
        raise JournalError(f"no generation could be claimed in {self.store.locate('generations')} in 1000 tries")

    def records(self, epoch: int | None = None) -> tuple[Record, ...]:
        """The decisions about an epoch, or all that are not rolled up yet, in the order of attempts."""
        return tuple(self._record(attempt) for attempt in self._attempts() if epoch in (None, attempt.epoch))

    def rivals(self, generation: int) -> tuple[int, ...]:
        """Earlier generations that may still be alive: claimed, and without an ABORT that they must meet.

        An ABORT before the generation's first epoch says nothing: that driver starts behind it and never sees it.
        """
        return self._rivals(generation, self.records())

    def recall(self, me: Attempt) -> tuple[tuple[Record, ...], tuple[int, ...]]:
        """The decisions about an epoch, and the rivals of a generation, with one look at the folder."""
        everything = self.records()
        about = tuple(record for record in everything if record.attempt.epoch == me.epoch)
        return about, self._rivals(me.generation, everything)

    def _rivals(self, generation: int, records: tuple[Record, ...]) -> tuple[int, ...]:
        aborted: dict[int, int] = {}
        for record in records:
            if record.decision is Decision.ABORT:
                aborted[record.attempt.generation] = record.attempt.epoch
        return tuple(
            number
            for number in self.generations()
            if number < generation and aborted.get(number, -1) < self._first_epoch(number)
        )

    def _first_epoch(self, generation: int) -> int:
        if generation not in self._first_epochs:
            key = f"generations/{generation:07d}.json"
            claimed = self._parsed("generation", key, lambda body: (int(body["generation"]), int(body["first_epoch"])))
            if claimed is None:
                return 0  # pruned since it was listed: long dead, and fencing it once more does no harm
            self._check_name(key, f"the claim of generation {claimed[0]}", claimed[0] == generation)
            self._first_epochs[generation] = claimed[1]
        return self._first_epochs[generation]

    def put(self, record: Record) -> Record:
        """Write a decision unless the attempt has one; returns the one that stands."""
        key = self._key(record.attempt)
        try:
            if self._create("attempt", key, record.to_json()):
                self._seen[key] = record
        except JournalError:
            standing = self.store.read(key)  # an error leaves the outcome open: only reading it back can settle it
            if standing is None:
                raise
        return self._record(record.attempt)

    def note(self, note: Note) -> None:
        """Keep a finding. The first one of its kind about an attempt stays."""
        body = {"attempt": str(note.attempt), "kind": note.kind, "details": dict(note.details)}
        self._create("note", self._note_key(note), body)

    def notes(self) -> Iterator[Note]:
        for name in self.store.list("notes"):
            key = f"notes/{name}"
            self._epoch_named("notes", name)
            note = self._parsed(
                "note", key, lambda body: Note(Attempt.parse(body["attempt"]), str(body["kind"]), dict(body["details"]))
            )
            if note is not None:  # else rolled up since it was listed
                self._check_name(key, f"a note about attempt {note.attempt}", key == self._note_key(note))
                yield note

    def resolve(self, epoch: int, resolution: Resolution) -> bool:
        """Record what a person chose for an epoch in conflict. False if a choice was recorded before."""
        return self._create("resolution", self._resolution_key(epoch), {"epoch": epoch, "choice": resolution.value})

    def resolution(self, epoch: int) -> Resolution | None:
        key = self._resolution_key(epoch)
        found = self._parsed("resolution", key, lambda body: (int(body["epoch"]), Resolution(body["choice"])))
        if found is None:
            return None
        self._check_name(key, f"the choice for epoch {found[0]}", found[0] == epoch)
        return found[1]

    def forget(self, attempt: Attempt) -> None:
        """Remove a decision that has been rolled up."""
        self.store.delete(self._key(attempt))
        self._seen.pop(self._key(attempt), None)

    def forget_findings(self, last: int) -> None:
        """Remove notes and choices about epochs that have been rolled up."""
        for folder in ("notes", "resolutions"):
            for name in self.store.list(folder):
                if self._epoch_named(folder, name) <= last:
                    self.store.delete(f"{folder}/{name}")

    def _attempts(self) -> list[Attempt]:
        found = (self._attempt_named(name) for name in self.store.list("attempts"))
        return sorted(found, key=lambda attempt: (attempt.epoch, attempt.generation))

    def _attempt_named(self, name: str) -> Attempt:
        stem = name.removesuffix(".json")
        try:
            attempt = _parsed_once(stem)
        except TallystickError:
            raise self._foreign(f"attempts/{name}") from None
        if stem == name:
            raise self._foreign(f"attempts/{name}")
        return attempt

    def _number(self, folder: str, name: str) -> int:
        match = re.fullmatch(r"([0-9]{7,})\.json", name)
        if match is None or name != f"{int(match[1]):07d}.json":
            raise self._foreign(f"{folder}/{name}")
        return int(match[1])

    def _epoch_named(self, folder: str, name: str) -> int:
        match = re.fullmatch(r"([0-9]{12,})\.([A-Za-z0-9_.-]+\.)?json", name)
        if match is None:
            raise self._foreign(f"{folder}/{name}")
        return int(match[1])

    def _foreign(self, key: str) -> JournalCorruptError:
        where = self.store.locate(key)
        return JournalCorruptError(f"{where} is no file of the journal: move it away, then start again", file=where)

    def _record(self, attempt: Attempt) -> Record:
        key = self._key(attempt)
        if key not in self._seen:
            record = self._parsed("attempt", key, Record.from_json)
            if record is None:
                where = self.store.locate(key)
                raise JournalError(f"{where} vanished: does another process clean up this journal?", file=where)
            self._check_name(key, f"the decision of attempt {record.attempt}", record.attempt == attempt)
            self._seen[key] = record
        return self._seen[key]

    def _read(self, kind: str, key: str) -> Json:
        data = self.store.read(key)
        return None if data is None else decode(kind, data, self.store.locate(key))

    def _parsed(self, kind: str, key: str, meaning: Callable[[Json], V]) -> V | None:
        """What a file says, None if it is absent. A body that makes no sense is a corrupt file, checksum or not."""
        body = self._read(kind, key)
        if body is None:
            return None
        try:
            return meaning(body)
        except (LookupError, TypeError, ValueError, AttributeError, TallystickError) as cause:
            where = self.store.locate(key)
            raise JournalCorruptError(
                f"{where} is a whole file of kind {kind!r}, but makes no sense ({type(cause).__name__}: {cause}): "
                "restore it from a copy of the checkpoint",
                file=where,
            ) from cause

    def _check_name(self, key: str, held: str, right: bool) -> None:
        if not right:
            where = self.store.locate(key)
            raise JournalCorruptError(f"{where} holds {held}: was it renamed? give it its name back", file=where)

    def _create(self, kind: str, key: str, body: Json) -> bool:
        return self.store.put_if_absent(key, encode(kind, body))

    @staticmethod
    def _key(attempt: Attempt) -> str:
        return f"attempts/{attempt}.json"

    @staticmethod
    def _note_key(note: Note) -> str:
        return f"notes/{note.attempt}.{note.kind.replace(' ', '-')}.json"

    @staticmethod
    def _resolution_key(epoch: int) -> str:
        return f"resolutions/{epoch:012d}.json"


@lru_cache(maxsize=4096)
def _parsed_once(name: str) -> Attempt:
    """Every epoch looks at the same few hundred names."""
    return Attempt.parse(name)
