"""The audit trail: one line per decided attempt, kept for years in a bounded number of files.

Recent decisions are whole journal records. When enough epochs are settled, the oldest are rolled up: their lines are
written into one immutable segment (put-if-absent), then their records are deleted. A crash in between leaves both;
the reader prefers the segment, and the next roll-up deletes the rest. A hundred segments are merged into one, so
that the folder stays small for years.

An ABORT is what stops a zombie, so the records of aborted attempts outlive the roll-up until `GENERATIONS_KEPT`
newer generations exist; a zombie that wakes up even later finds its epoch below `horizon` and stops there.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator

from tallystick.errors import JournalCorruptError, JournalError
from tallystick.journal.codec import VERSION, check_version, to_line
from tallystick.journal.journal import Journal, Note
from tallystick.records import Decision, Json, Record, refused_by_sink, totals_by_sink

EPOCHS_PER_SEGMENT = 100
SEGMENTS_PER_MERGE = 100
GENERATIONS_KEPT = 100


def audit_line(record: Record) -> Json:
    """What the audit keeps of a decision: everything but the committables, and of refused rows how many."""
    line: dict[str, Json] = {
        "epoch": record.attempt.epoch,
        "generation": record.attempt.generation,
        "decision": record.decision.value,
        "mode": record.mode.value,
        "sinks": {sink: str(total) for sink, total in totals_by_sink(record.votes).items()},
    }
    if refused := refused_by_sink(record.votes):
        line["refused"] = refused
    if record.replaces is not None:
        line["replaces"] = record.replaces.to_json()
    if record.reason:
        line["reason"] = record.reason
    if record.read.digest:
        line["read"] = record.read.to_json()
    if record.stamp_us:
        line["stamp_us"] = record.stamp_us
    if record.facts:
        line["facts"] = dict(record.facts)
    return line


def note_line(note: Note) -> Json:
    """A finding in the audit has a kind where a decision has a decision."""
    epoch, generation = note.attempt.epoch, note.attempt.generation
    return {"epoch": epoch, "generation": generation, "note": note.kind, "details": dict(note.details)}


def audit_lines(journal: Journal) -> Iterator[Json]:
    """Every decision and finding of the job's life, oldest first.

    A living driver may roll up meanwhile. So what is recent is read first: whatever is gone by then is in a segment.
    """
    recent = [audit_line(record) for record in journal.records()] + [note_line(note) for note in journal.notes()]
    segments, _ = _segments(journal)
    rolled_up_to = -1
    for first, last, name in segments:
        if rolled_up_to not in (-1, first - 1):
            missing = journal.store.locate(_segment_key(rolled_up_to + 1, first - 1))
            raise JournalCorruptError(
                f"the audit trail has a gap: nothing covers the epochs {rolled_up_to + 1} to {first - 1}. restore "
                f"{missing}, or the smaller segments that it is made of, from a copy of the checkpoint",
                file=missing,
            )
        yield from _read_segment(journal, name)
        rolled_up_to = last
    recent = [line for line in recent if line["epoch"] > rolled_up_to]
    yield from sorted(recent, key=lambda line: (line["epoch"], line["generation"]))


def horizon(journal: Journal) -> int:
    """The newest epoch that is rolled up, or -1. Nobody may decide anything about it or older ones any more."""
    segments, _ = _segments(journal)
    return segments[-1][1] if segments else -1


def roll_up(journal: Journal, settled: int, epochs: int = EPOCHS_PER_SEGMENT) -> bool:
    """Move the oldest settled epochs into a segment, if there are twice as many as one takes. True if it did."""
    records = journal.records()
    first = horizon(journal) + 1
    if first == 0 and records:  # the first roll-up: a job may have taken over a checkpoint that Spark had used before
        first = records[0].attempt.epoch // epochs * epochs
    if settled + 1 - first < 2 * epochs:
        return False
    last = first + epochs - 1
    lines = [audit_line(record) for record in records if first <= record.attempt.epoch <= last]
    lines += [note_line(note) for note in journal.notes() if first <= note.attempt.epoch <= last]
    lines.sort(key=lambda line: (line["epoch"], line["generation"]))
    journal.store.put_if_absent(_segment_key(first, last), _dump(first, last, lines))
    _delete_rolled_up(journal, last)
    _merge(journal)
    return True


def _delete_rolled_up(journal: Journal, last: int) -> None:
    generations = journal.generations()
    oldest_kept = max(generations, default=0) - GENERATIONS_KEPT
    for number in generations:
        if number < oldest_kept:
            journal.store.delete(f"generations/{number:07d}.json")
    for record in journal.records():
        if record.attempt.epoch > last:
            continue
        if record.decision is Decision.COMMIT or record.attempt.generation < oldest_kept:
            journal.forget(record.attempt)
    journal.forget_findings(last)


def _merge(journal: Journal) -> None:
    size = EPOCHS_PER_SEGMENT * SEGMENTS_PER_MERGE
    segments, merged_already = _segments(journal)
    for name in merged_already:
        journal.store.delete(f"audit/{name}")
    small = [(first, last, name) for first, last, name in segments if last - first + 1 < size]
    if len(small) < SEGMENTS_PER_MERGE:
        return
    batch = small[:SEGMENTS_PER_MERGE]
    lines = [line for _, _, name in batch for line in _read_segment(journal, name)]
    first, last = batch[0][0], batch[-1][1]
    journal.store.put_if_absent(_segment_key(first, last), _dump(first, last, lines))
    for _, _, name in batch:
        journal.store.delete(f"audit/{name}")


def _segments(journal: Journal) -> tuple[list[tuple[int, int, str]], list[str]]:
    """The segments in force (first epoch, last epoch, file name), and those whose lines a merged one holds too.

    The second list is empty unless a merge was cut short.
    """
    found = []
    for name in journal.store.list("audit"):
        match = re.fullmatch(r"([0-9]{12,})-([0-9]{12,})\.jsonl", name)
        if match is None or int(match[2]) < int(match[1]):
            where = journal.store.locate(f"audit/{name}")
            raise JournalCorruptError(f"{where} is no file of the audit trail: move it away", file=where)
        found.append((int(match[1]), int(match[2]), name))
    in_force: list[tuple[int, int, str]] = []
    merged_already: list[str] = []
    for segment in sorted(found, key=lambda segment: (segment[0], -segment[1])):
        if in_force and segment[1] <= in_force[-1][1]:
            merged_already.append(segment[2])
        else:
            in_force.append(segment)
    return in_force, merged_already


def _segment_key(first: int, last: int) -> str:
    return f"audit/{first:012d}-{last:012d}.jsonl"


def _dump(first: int, last: int, lines: list[Json]) -> bytes:
    """The last line vouches for the others: a truncated, changed or renamed segment is noticed."""
    body = b"".join(map(to_line, lines))
    return body + to_line({"version": VERSION, **_seal(first, last, len(lines), body)})


def _seal(first: int, last: int, lines: int, body: bytes) -> dict[str, Json]:
    checksum = f"{zlib.crc32(body):08x}"
    return {"tallystick": "segment", "first": first, "last": last, "lines": lines, "crc32": checksum}


def _read_segment(journal: Journal, name: str) -> list[Json]:
    where = journal.store.locate(f"audit/{name}")
    data = journal.store.read(f"audit/{name}")
    if data is None:
        raise JournalError(f"{where} was merged into a larger one while it was read: ask again", file=where)
    body, seal = _cut(data)
    first, last = (int(number) for number in name.removesuffix(".jsonl").split("-"))
    try:
        envelope = json.loads(seal)
        lines = [json.loads(line) for line in body.split(b"\n")[:-1]]
    except (ValueError, RecursionError) as cause:
        raise JournalCorruptError(
            f"{where} is torn or truncated ({cause}): restore it from a copy of the checkpoint", file=where
        ) from cause
    check_version(envelope, where)
    expected = _seal(first, last, len(lines), body)
    found = {key: envelope.get(key) for key in expected}
    if found != expected:
        raise JournalCorruptError(
            f"{where} has {expected}, but says of itself {found}: it was damaged, changed or renamed. restore it from "
            "a copy of the checkpoint",
            file=where,
        )
    return lines


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """The lines of a segment, and the last one."""
    body, newline, seal = data.removesuffix(b"\n").rpartition(b"\n")
    return body + newline, seal
