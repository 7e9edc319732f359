"""Put together what ``checkpoints list`` and ``show`` print. Only reads: a job may run on the checkpoint meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.cli import cut
from tallystick.cli.ledger import Epoch, ledger
from tallystick.cli.opened import Opened
from tallystick.cli.pending import name_of, pending
from tallystick.errors import CheckpointError
from tallystick.records import Decision, Json, Record, Vote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.job import Job
    from tallystick.spark.keyed import Operator

COMMITTED = "committed"


@dataclass(frozen=True)
class State:
    """What to read of the keyed state: the values of one key, or the first so many; nothing if not ``wanted``."""

    wanted: bool = True
    key: str | None = None
    limit: int = 10


def listed(opened: Opened) -> list[cut.Cut]:
    """Every epoch of the job's life, oldest first, and the one that runs."""
    from tallystick.journal import audit_lines
    from tallystick.spark.keyed import epoch_bytes
    from tallystick.spark.tree import checkpoint_tree

    lines = list(audit_lines(opened.journal))
    after = cut.after_decisions(lines)
    tree = checkpoint_tree(opened.location, opened.spark)
    found = [
        cut.cut(
            epoch,
            after.get(epoch.epoch),
            opened.is_settled(epoch.epoch),
            epoch_bytes(tree, epoch.epoch),
            _kept(opened, epoch.epoch, tree),
        )
        for epoch in ledger(lines, _standing(opened)).epochs
    ]
    if opened.begun > opened.finished and opened.begun not in {one.epoch for one in found}:
        found.append(cut.Cut(opened.begun, cut.RUNNING, bytes=epoch_bytes(tree, opened.begun)))
    return found


def shown(opened: Opened, epoch: int, job: Job | None, state: State) -> Json:
    """One checkpoint: ``{"epoch", "sources", "operators", "transactions", …}``."""
    from tallystick.spark.keyed import epoch_bytes, operators
    from tallystick.spark.tree import checkpoint_tree

    [one] = [entry for entry in listed(opened) if entry.epoch == epoch] or [_missing(opened, epoch)]
    tree = checkpoint_tree(opened.location, opened.spark)
    found = operators(opened.location, tree, epoch, opened.spark)
    if state.wanted and found:
        _read_state(opened, one, found, state)
    return {
        "job": opened.owner.job,
        "checkpoint": opened.location,
        **one.to_json(),
        "bytes": epoch_bytes(tree, epoch),
        "sources": _with_lags(_sources(opened, epoch, tree), opened, epoch, job),
        "rules": _rules(opened, epoch, state),
        "operators": [operator.to_json() for operator in found],
        "transactions": _transactions(opened, epoch, job),
    }


def _missing(opened: Opened, epoch: int) -> cut.Cut:
    raise CheckpointError(
        f"{opened.location} has no epoch {epoch}: the newest that was begun is {opened.begun}. see what there is: "
        f"tallystick checkpoints list {opened.location}"
    )


def _kept(opened: Opened, epoch: int, tree: Iterable[str]) -> bool:
    return opened.is_settled(epoch) and {f"offsets/{epoch}", f"commits/{epoch}"} <= set(tree)


def _standing(opened: Opened) -> Json:
    from tallystick.cli.audit import standing_totals

    return standing_totals(opened.journal)


def _read_state(opened: Opened, one: cut.Cut, found: list[Operator], state: State) -> None:
    from tallystick.spark.keyed import read_values

    if one.status != cut.FINISHED:
        raise CheckpointError(
            f"epoch {one.epoch} is {one.status}: its state is not complete. show the one before, or add --no-state"
        )
    if not one.kept:
        raise CheckpointError(
            f"Spark does not keep epoch {one.epoch} any more, so its state is gone: add --no-state for the rest. how "
            "many epochs are kept is Checkpoint(retention=…)"
        )
    spark = opened.spark or _session(opened)
    for operator in found:
        operator.values = read_values(spark, opened.location, operator, one.epoch, state.key, state.limit)


def _session(opened: Opened) -> SparkSession:
    from tallystick.cli.opened import session_to_read

    return session_to_read(opened.location)


def _sources(opened: Opened, epoch: int, tree: Iterable[str]) -> list[Json]:
    """What the epoch read up to: from Spark's log while it has it, afterwards from the journal."""
    from tallystick.journal import audit_lines
    from tallystick.spark.offsets import parse_offsets
    from tallystick.spark.tree import read_file

    path = f"offsets/{epoch}"
    if path in set(tree):
        offsets = parse_offsets(read_file(opened.location, path, opened.spark), f"{opened.location}/{path}").offsets
    else:
        lines = (line for line in audit_lines(opened.journal) if line["epoch"] == epoch)
        offsets = next((tuple(line["read"]["offsets"]) for line in lines if "read" in line), ())
    return cut.sources(offsets, _names(opened))


def _with_lags(sources: list[Json], opened: Opened, epoch: int, job: Job | None) -> list[Json]:
    """With the job, what its sources hold after this epoch; without, nobody knows where to ask."""
    from tallystick.spark.lag import lags

    if job is None:
        return sources
    told = {one.name: one.to_json() for one in lags(job, opened.location, epoch, opened.spark)}
    asked = [told.get(source["name"], {"lag": None, "unknown": "not a source of this job"}) for source in sources]
    return [
        {**source, "lag": one["lag"], "lag_unknown": one["unknown"]} for source, one in zip(sources, asked, strict=True)
    ]


def _rules(opened: Opened, epoch: int, state: State) -> list[Json]:
    """What broadcast states held in this epoch, as far as the journal keeps it."""
    from tallystick.journal.rules import RuleSets

    sets = RuleSets(opened.journal.store)
    found = [known for name in sets.states() if (known := sets.newest(name, epoch)) is not None]
    return [
        {
            "state": known.state,
            "since_epoch": known.epoch,
            "digest": known.digest,
            "keys": len(known.rules),
            "sample": [
                {"key": json.loads(key), "value": json.loads(rule)}
                for key, rule in sorted(known.rules.items())[: state.limit]
            ],
        }
        for known in found
    ]


def _names(opened: Opened) -> list[str]:
    """The newest driver said which source is which line of Spark's log."""
    generations = opened.journal.generations()
    claim = opened.journal.generation(generations[-1]) if generations else None
    return list((claim or {}).get("sources", []))


def _transactions(opened: Opened, epoch: int, job: Job | None) -> list[Json]:
    """Of the journal; with the job also what its sinks hold open. Long settled ones are known by sink only."""
    from tallystick.journal import audit_lines

    records = opened.journal.records(epoch)
    found = [_transaction(opened, record, vote) for record in records for vote in record.votes if vote.committable]
    if not any(record.decision is Decision.COMMIT for record in records):
        [rolled_up] = ledger(line for line in audit_lines(opened.journal) if line["epoch"] == epoch).epochs or [
            Epoch(epoch)
        ]
        found += [
            {"sink": sink, "slice": None, "name": None, "state": COMMITTED, "records": total.rows, "generation": None}
            for sink, total in rolled_up.sinks.items()
        ]
    if job is not None:
        held = [entry.to_json() for entry in pending(opened, job) if entry.epoch == epoch]
        known = {(entry["sink"], entry["name"]) for entry in held}
        found = [entry for entry in found if (entry["sink"], entry["name"]) not in known] + held
    return found


def _transaction(opened: Opened, record: Record, vote: Vote) -> Json:
    return {
        "sink": vote.sink,
        "slice": vote.slice,
        "name": name_of(vote),
        "state": COMMITTED if opened.is_settled(record.attempt.epoch) else cut.IN_DOUBT,
        "records": vote.fingerprint.rows,
        "refused": vote.refused_rows,
        "generation": record.attempt.generation,
    }
