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
from collections.abc import Iterator

from tallystick.errors import JournalCorruptError
from tallystick.journal.journal import Journal, Note
from tallystick.records import Decision, Json, Record, totals_by_sink

EPOCHS_PER_SEGMENT = 100
SEGMENTS_PER_MERGE = 100
GENERATIONS_KEPT = 100


def audit_line(record: Record) -> Json:
    """What the audit keeps of a decision: everything but the committables."""
    line: dict[str, Json] = {
        "epoch": record.attempt.epoch,
        "generation": record.attempt.generation,
        "decision": record.decision.value,
        "mode": record.mode.value,
        "sinks": {sink: str(total) for sink, total in totals_by_sink(record.votes).items()},
    }
    if record.replaces is not None:
        line["replaces"] = record.replaces.to_json()
    if record.reason:
        line["reason"] = record.reason
    if record.read.digest:
        line["read"] = {"digest": record.read.digest, "offsets": list(record.read.offsets)}
    if record.facts:
        line["facts"] = dict(record.facts)
    return line


def note_line(note: Note) -> Json:
    """A finding in the audit has a kind where a decision has a decision."""
    epoch, generation = note.attempt.epoch, note.attempt.generation
    return {"epoch": epoch, "generation": generation, "note": note.kind, "details": dict(note.details)}


def audit_lines(journal: Journal) -> Iterator[Json]:
    """Every decision and finding of the job's life, oldest first."""
    segments, _ = _segments(journal)
    for _, _, name in segments:
        yield from _read_segment(journal, name)
    rolled_up_to = horizon(journal)
    recent = [audit_line(record) for record in journal.records() if record.attempt.epoch > rolled_up_to]
    recent += [note_line(note) for note in journal.notes() if note.attempt.epoch > rolled_up_to]
    yield from sorted(recent, key=lambda line: (line["epoch"], line["generation"]))


def horizon(journal: Journal) -> int:
    """The newest epoch that is rolled up, or -1. Nobody may decide anything about it or older ones any more."""
    segments, _ = _segments(journal)
    return segments[-1][1] if segments else -1


def roll_up(journal: Journal, settled: int, epochs: int = EPOCHS_PER_SEGMENT) -> bool:
    """Move the oldest settled epochs into a segment, if there are twice as many as one takes. True if it did."""
    records = journal.records()
    first = horizon(journal) + 1
    if settled + 1 - first < 2 * epochs:
        return False
    last = first + epochs - 1
    lines = [audit_line(record) for record in records if first <= record.attempt.epoch <= last]
    lines += [note_line(note) for note in journal.notes() if first <= note.attempt.epoch <= last]
    lines.sort(key=lambda line: (line["epoch"], line["generation"]))
    journal.store.put_if_absent(_segment_key(first, last), _dump(lines))
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
    for folder in ("notes", "resolutions"):
        for name in journal.store.list(folder):
            if int(name.split(".")[0]) <= last:
                journal.store.delete(f"{folder}/{name}")


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
    journal.store.put_if_absent(_segment_key(batch[0][0], batch[-1][1]), _dump(lines))
    for _, _, name in batch:
        journal.store.delete(f"audit/{name}")


def _segments(journal: Journal) -> tuple[list[tuple[int, int, str]], list[str]]:
    """The segments in force (first epoch, last epoch, file name), and those whose lines a merged one holds too.

    The second list is empty unless a merge was cut short.
    """
    found = []
    for name in journal.store.list("audit"):
        match = re.fullmatch(r"(\d{12,})-(\d{12,})\.jsonl", name)
        if match is None:
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


def _dump(lines: list[Json]) -> bytes:
    """The last line counts the others: a truncated segment is noticed."""
    body = [json.dumps(line, ensure_ascii=False) for line in lines]
    return "\n".join([*body, json.dumps({"end": len(lines)})]).encode() + b"\n"


def _read_segment(journal: Journal, name: str) -> list[Json]:
    where = journal.store.locate(f"audit/{name}")
    data = journal.store.read(f"audit/{name}") or b""
    try:
        *lines, end = [json.loads(line) for line in data.decode().splitlines()]
    except ValueError as cause:
        raise JournalCorruptError(f"{where} is torn or truncated ({cause}): restore it", file=where) from cause
    if end != {"end": len(lines)}:
        raise JournalCorruptError(f"{where} has {len(lines)} lines and ends with {end}: restore it", file=where)
    return lines
