"""From the lines of the audit trail to epochs and totals. Pure: lines in, values out.

Which COMMIT counts, so that nothing is counted twice:

1.  The first COMMIT of an epoch names all of its output; one that replaces nothing at all (at-least-once doing an
    epoch again) takes its place.
2.  A COMMIT that replaces an empty set wrote nothing: it verified what was decided before.
3.  A COMMIT that replaces whole sinks gives their new totals. One that replaces single slices wrote rows of the same
    fingerprint again, so the sink's total stays; only after ``resolve --rewrite`` can it differ, and for epochs that
    are not rolled up the caller knows the total in force (`standing`).
4.  At-most-once decides before it writes, so its COMMIT has no totals: they are in the note ``delivered``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tallystick.records import HASH_MASK, Decision, Fingerprint, Json, Vote, refused_by_sink, totals_by_sink

LOSS = "abandoned"
"""The one finding that means loss in a job that promised none."""


@dataclass
class Epoch:
    """All that is known of one epoch. ``decision`` is None if only notes about it are left.

    ``refused`` are rows of a sink that are not there but among the dead letters: its total counts them too.
    """

    epoch: int
    decision: str | None = None
    mode: str | None = None
    generation: int | None = None
    attempts: int = 0
    aborted: int = 0
    verified: int = 0
    rewritten: int = 0
    sinks: dict[str, Fingerprint] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    notes: list[Json] = field(default_factory=list)
    facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(total.rows for total in self.sinks.values()) - sum(self.refused.values())

    def to_json(self) -> Json:
        return {
            "epoch": self.epoch,
            "decision": self.decision,
            "mode": self.mode,
            "generation": self.generation,
            "records": self.records,
            "refused": sum(self.refused.values()),
            "sinks": {
                name: _total_json(total, self.refused.get(name, 0)) for name, total in sorted(self.sinks.items())
            },
            "attempts": self.attempts,
            "aborted": self.aborted,
            "verified": self.verified,
            "rewritten": self.rewritten,
            "reasons": self.reasons,
            "notes": self.notes,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True)
class Ledger:
    epochs: tuple[Epoch, ...]

    @property
    def by_sink(self) -> dict[str, Fingerprint]:
        totals: dict[str, Fingerprint] = {}
        for epoch in self.epochs:
            for name, total in epoch.sinks.items():
                totals[name] = totals.get(name, Fingerprint()) + total
        return dict(sorted(totals.items()))

    @property
    def refused_by_sink(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for epoch in self.epochs:
            for name, count in epoch.refused.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    @property
    def losses(self) -> tuple[int, ...]:
        """Epochs with rows that were decided on and given up."""
        return tuple(epoch.epoch for epoch in self.epochs if any(note["kind"] == LOSS for note in epoch.notes))

    def totals_json(self) -> Json:
        decided = [epoch for epoch in self.epochs if epoch.decision == Decision.COMMIT.value]
        refused = self.refused_by_sink
        return {
            "epochs": len(decided),
            "records": sum(epoch.records for epoch in self.epochs),
            "refused": sum(refused.values()),
            "attempts": sum(epoch.attempts for epoch in self.epochs),
            "aborted": sum(epoch.aborted for epoch in self.epochs),
            "by_sink": {name: _total_json(total, refused.get(name, 0)) for name, total in self.by_sink.items()},
        }


def ledger(lines: Iterable[Json], standing: Mapping[int, Mapping[str, Fingerprint]] | None = None) -> Ledger:
    """Add up the audit trail. ``standing`` are totals by epoch and sink that are known better (essay 3)."""
    epochs: dict[int, Epoch] = {}
    for line in sorted(lines, key=lambda line: (line["epoch"], line["generation"])):
        epoch = epochs.setdefault(line["epoch"], Epoch(line["epoch"]))
        if "note" in line:
            epoch.notes.append({"kind": line["note"], "generation": line["generation"], "details": line["details"]})
        else:
            _add_decision(epoch, line)
    for number, epoch in epochs.items():
        if number in (standing or {}):
            epoch.sinks = dict((standing or {})[number])
        _heed_notes(epoch)
    return Ledger(tuple(epochs[number] for number in sorted(epochs)))


def _add_decision(epoch: Epoch, line: Json) -> None:
    epoch.attempts += 1
    if line["decision"] == Decision.ABORT.value:
        epoch.aborted += 1
        epoch.decision = epoch.decision or Decision.ABORT.value
        epoch.reasons.append(f"generation {line['generation']}: {line.get('reason') or 'aborted'}")
        return
    sinks = {name: Fingerprint.parse(text) for name, text in line["sinks"].items()}
    replaces = line.get("replaces")
    if replaces is None or epoch.decision != Decision.COMMIT.value:
        if epoch.decision == Decision.COMMIT.value:
            epoch.notes.append({"kind": "done again", "generation": line["generation"], "details": {}})
        epoch.decision, epoch.mode, epoch.generation = Decision.COMMIT.value, line["mode"], line["generation"]
        epoch.sinks, epoch.facts, epoch.refused = sinks, line.get("facts", {}), dict(line.get("refused", {}))
    elif not replaces["sinks"] and not replaces["slices"]:
        epoch.verified += 1
    else:
        epoch.rewritten += 1
        epoch.sinks.update({name: sinks.get(name, Fingerprint()) for name in replaces["sinks"]})


def _heed_notes(epoch: Epoch) -> None:
    """Put in what at-most-once delivered (essay 4), and take out what was given up: once, however often it is noted."""
    lost: dict[tuple[str, int], Vote] = {}
    for note in epoch.notes:
        if note["kind"] == "delivered":
            votes = [Vote.from_json(vote) for vote in note["details"]["votes"]]
            epoch.sinks, epoch.refused = totals_by_sink(votes), refused_by_sink(votes)
        elif note["kind"] == LOSS:
            lost |= {vote.key: vote for vote in map(Vote.from_json, note["details"]["votes"])}
    for name, part in totals_by_sink(list(lost.values())).items():
        epoch.sinks[name] = _minus(epoch.sinks.get(name, Fingerprint()), part)


def _minus(total: Fingerprint, part: Fingerprint) -> Fingerprint:
    return Fingerprint(max(0, total.rows - part.rows), (total.hash - part.hash) & HASH_MASK)


def _total_json(total: Fingerprint, refused: int) -> Json:
    return {"records": total.rows, "refused": refused, "fingerprint": str(total)}
