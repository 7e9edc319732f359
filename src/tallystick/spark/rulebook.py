"""Which rules an epoch sees: found out once, written down before its slices, and found again by everyone after that.

1.  *What belongs to epoch N is fixed by Spark.* The control stream is a source of the query. Its line in ``offsets/N``
    is written before the epoch begins, and the line in ``offsets/N-1`` says from where on its rows are new.
2.  *What they say is fixed by the journal.* The rules after these rows are put into ``rules/N``, if absent, before the
    first slice is written. A replay takes them from there: it does not ask the control stream, which may have been
    compacted or cleaned up meanwhile. Of two drivers at the same epoch the first one's file counts for both.
3.  *Nothing is taken for granted.* A set of rules names the offset up to which it was read. If that is not where the
    epoch before ended, a file is missing or the logs were rewound: an error, never an empty set of rules. A decision
    names the hash of the rules that its rows were made with; a replay with others is refused before it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.errors import CheckpointError, ForeignCheckpointError, SourceError
from tallystick.journal.rules import RuleSet, RuleSets
from tallystick.journal.stores import open_store
from tallystick.records import Json, SourceOffsets
from tallystick.spark.broadcast import LIMIT_BYTES, Broadcast, packed
from tallystick.spark.offsets import parse_offsets, source_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.journal.store import Store

KEPT_EPOCHS = 100
"""Rules of so many epochs stay, for people who look back; a replay needs one."""
_WAY_OUT = "nothing was written. restore the whole folder from one copy, or start with a new checkpoint"


@dataclass(frozen=True)
class Declared:
    """A broadcast state of the job, and which line of Spark's offset log is its control stream's."""

    state: Broadcast
    place: int


class Rulebook:
    """Driver, one per generation: the rules of every broadcast state, epoch by epoch."""

    def __init__(self, declared: Sequence[Declared], checkpoint: str, journal: Store) -> None:
        self._declared = tuple(declared)
        self._checkpoint = checkpoint
        self._sets = RuleSets(journal)
        self._held: dict[str, tuple[RuleSet, str]] = {}

    def at(self, spark: SparkSession, epoch: int, read: SourceOffsets) -> dict[str, tuple[RuleSet, str]]:
        """Before the slices of an epoch: by state, its rules and how they travel. Written down when this returns."""
        for each in self._declared:
            name = each.state.name
            found = self._found(each, spark, epoch, read)
            if name not in self._held or self._held[name][0].digest != found.digest:
                self._held[name] = (found, _travelling(found))
            else:
                self._held[name] = (found, self._held[name][1])
        return dict(self._held)

    def prune(self, settled: int) -> None:
        for each in self._declared:
            self._sets.prune(each.state.name, settled - KEPT_EPOCHS)

    def _found(self, each: Declared, spark: SparkSession, epoch: int, read: SourceOffsets) -> RuleSet:
        name, now = each.state.name, read.offsets[each.place]
        held = self._held.get(name)
        newest = held[0] if held is not None and held[0].epoch < epoch else self._sets.newest(name, epoch)
        if newest is not None and newest.epoch == epoch:
            return self._checked(newest, epoch, now)
        before = self._offset_before(spark, each.place, epoch)
        base = newest if newest is not None else RuleSet(name, -1, None)
        self._checked(base, epoch - 1, before)
        if now == before:
            return base
        rules = self._applied(each, spark, base, before, now)
        made = RuleSet(name, epoch, now, rules)
        _travelling(made)  # what is too large is not written down either
        return self._checked(self._sets.put(made), epoch, now)

    def _checked(self, found: RuleSet, epoch: int, offset: Json) -> RuleSet:
        """Essay 3."""
        if found.offset == offset:
            return found
        where = self._sets.locate(found) if found.epoch >= 0 else "the journal, which has none,"
        kind = ForeignCheckpointError if found.epoch == epoch else CheckpointError
        raise kind(
            f"the checkpoint is not whole: by epoch {epoch} the control stream of {found.state!r} was read up to "
            f"{offset}, but the newest rules, in {where} are those of {found.offset}. {_WAY_OUT}",
            epoch=epoch,
        )

    def _offset_before(self, spark: SparkSession, place: int, epoch: int) -> Json:
        if epoch == 0:
            return None
        logs = open_store(self._checkpoint, spark)
        key = f"offsets/{epoch - 1}"
        data = logs.read(key)
        if data is None:
            raise CheckpointError(
                f"the checkpoint is not whole: {logs.locate(key)} is gone, which says up to where the rules of epoch "
                f"{epoch - 1} were read. {_WAY_OUT}",
                epoch=epoch,
            )
        return parse_offsets(data.decode(errors="replace"), logs.locate(key)).offsets[place]

    def _applied(self, each: Declared, spark: SparkSession, base: RuleSet, start: Json, end: Json) -> dict[str, str]:
        rules, log = dict(base.rules), partial(source_log, self._checkpoint, each.place, spark)
        try:
            rows = each.state.source.load_range(spark, start, end, log)
            for key, rule in each.state.changes(rows):
                if rule is None:
                    rules.pop(key, None)
                else:
                    rules[key] = rule
        except (PySparkException, Py4JError) as cause:
            first = " ".join(str(cause).strip().splitlines()[0].split())
            raise SourceError(
                f"the control stream of broadcast state {base.state!r} ({each.state.source.name}) could not be read "
                f"from {start} to {end}: {first}. if its rows are gone, start with a new checkpoint"
            ) from cause
        return rules


def _travelling(found: RuleSet) -> str:
    text = packed(found.rules, found.digest)
    if len(text) > LIMIT_BYTES:
        raise SourceError(
            f"the rules of broadcast state {found.state!r} are {len(text):,} bytes packed ({len(found.rules):,} "
            f"rules), at most {LIMIT_BYTES:,} can go to every task: broadcast fewer or smaller rules, and join large "
            "tables as static DataFrames"
        )
    return text
