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
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tallystick.errors import ForeignCheckpointError, JournalCorruptError, JournalError
from tallystick.journal.codec import decode, encode
from tallystick.journal.store import Store
from tallystick.records import Attempt, Decision, Json, Record, Resolution


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
        body = self._read("job", "job.json")
        return None if body is None else JobIdentity(body["job"], body["id"])

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
            if self._create("generation", f"generations/{number:07d}.json", {**who, "first_epoch": first_epoch}):
                return number
        raise JournalError(f"no generation could be claimed in {self.store.locate('generations')} in 1000 tries")

    def records(self, epoch: int | None = None) -> tuple[Record, ...]:
        """The decisions about an epoch, or all that are not rolled up yet, in the order of attempts."""
        return tuple(self._record(attempt) for attempt in self._attempts() if epoch in (None, attempt.epoch))

    def rivals(self, generation: int) -> tuple[int, ...]:
        """Earlier generations that may still be alive: claimed, and without an ABORT that they must meet.

        An ABORT before the generation's first epoch says nothing: that driver starts behind it and never sees it.
        """
        aborted: dict[int, int] = {}
        for record in self.records():
            if record.decision is Decision.ABORT:
                aborted[record.attempt.generation] = record.attempt.epoch
        return tuple(
            number
            for number in self.generations()
            if number < generation and aborted.get(number, -1) < self._first_epoch(number)
        )

    def _first_epoch(self, generation: int) -> int:
        if generation not in self._first_epochs:
            claimed = self._read("generation", f"generations/{generation:07d}.json")
            if claimed is None:
                return 0  # pruned since it was listed: long dead, and fencing it once more does no harm
            self._first_epochs[generation] = int(claimed["first_epoch"])
        return self._first_epochs[generation]

    def put(self, record: Record) -> Record:
        """Write a decision unless the attempt has one; returns the one that stands."""
        key = self._key(record.attempt)
        try:
            self._create("attempt", key, record.to_json())
        except JournalError:
            standing = self.store.read(key)  # an error leaves the outcome open: only reading it back can settle it
            if standing is None:
                raise
        return self._record(record.attempt)

    def note(self, note: Note) -> None:
        """Keep a finding. The first one of its kind about an attempt stays."""
        slug = note.kind.replace(" ", "-")
        body = {"attempt": str(note.attempt), "kind": note.kind, "details": dict(note.details)}
        self._create("note", f"notes/{note.attempt}.{slug}.json", body)

    def notes(self) -> Iterator[Note]:
        for name in self.store.list("notes"):
            body = self._read("note", f"notes/{name}")
            if body is not None:
                yield Note(Attempt.parse(body["attempt"]), body["kind"], body["details"])

    def resolve(self, epoch: int, resolution: Resolution) -> bool:
        """Record what a person chose for an epoch in conflict. False if a choice was recorded before."""
        return self._create("resolution", self._resolution_key(epoch), {"choice": resolution.value})

    def resolution(self, epoch: int) -> Resolution | None:
        body = self._read("resolution", self._resolution_key(epoch))
        return None if body is None else Resolution(body["choice"])

    def forget(self, attempt: Attempt) -> None:
        """Remove a decision that has been rolled up."""
        self.store.delete(self._key(attempt))
        self._seen.pop(self._key(attempt), None)

    def _attempts(self) -> list[Attempt]:
        return sorted(self._attempt_named(name) for name in self.store.list("attempts"))

    def _attempt_named(self, name: str) -> Attempt:
        if not re.fullmatch(r"\d{12,}\.\d{7,}\.json", name):
            raise self._foreign(f"attempts/{name}")
        return Attempt.parse(name.removesuffix(".json"))

    def _number(self, folder: str, name: str) -> int:
        if not re.fullmatch(r"\d{7,}\.json", name):
            raise self._foreign(f"{folder}/{name}")
        return int(name.removesuffix(".json"))

    def _foreign(self, key: str) -> JournalCorruptError:
        where = self.store.locate(key)
        return JournalCorruptError(f"{where} is no file of the journal: move it away, then start again", file=where)

    def _record(self, attempt: Attempt) -> Record:
        key = self._key(attempt)
        if key not in self._seen:
            body = self._read("attempt", key)
            where = self.store.locate(key)
            if body is None:
                raise JournalError(f"{where} vanished: does another process clean up this journal?")
            record = Record.from_json(body)
            if record.attempt != attempt:
                raise JournalCorruptError(f"{where} holds the decision of attempt {record.attempt}: was it renamed?")
            self._seen[key] = record
        return self._seen[key]

    def _read(self, kind: str, key: str) -> Json:
        data = self.store.read(key)
        return None if data is None else decode(kind, data, self.store.locate(key))

    def _create(self, kind: str, key: str, body: Json) -> bool:
        return self.store.put_if_absent(key, encode(kind, body))

    @staticmethod
    def _key(attempt: Attempt) -> str:
        return f"attempts/{attempt}.json"

    @staticmethod
    def _resolution_key(epoch: int) -> str:
        return f"resolutions/{epoch:012d}.json"
