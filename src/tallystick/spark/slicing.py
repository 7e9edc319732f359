"""How many slices an epoch has: as many as the job can write at the same time, and for small epochs fewer.

Without this every partition of the source is a slice. Each one costs an epoch a Python task, and a transaction of each
sink; more of them than there are task slots make an epoch longer and nothing shorter. So tasks take over several
partitions of the source, one after the other.

1.  *Only on one machine.* There Spark puts neighbours together, the same ones in every replay. On a cluster it goes by
    where executors are, and those change.
2.  *Only where no step keeps state.* State is bound to the partitions of the shuffle below it, each in a task of its
    own; a step that nobody thought of counts as one that does.
3.  *Who wants another number says so*, with ``repartition`` or ``coalesce`` in the query's own steps: then it stays.
    Such slices share tasks, though, while epochs are not large (*grouped*): a task has several of them. Rows say which
    partition they were in, so slices are the same ones however tasks share them.
4.  *Small epochs have as many as there are processors*, where that is fewer than task slots. More slots than processors
    help a large epoch: one task can work while another one waits. In a small one they only cost time of the processors.
    After a few small epochs the next one has fewer slices, after a large one more. The number for the next epoch goes
    to Spark's planner as a setting of the query's session (``SliceCount.java``).
5.  *A replay has the number of the epoch that was decided*, so that its slices are the same ones, also with another
    number of task slots: a job that starts takes the number of its newest decision for its first epoch. Grouped slices
    need no such care.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.jvm.classes import SLICES_CLASS
from tallystick.spark.batching import Seen
from tallystick.spark.state import STATELESS, steps_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallystick.journal import Journal

MOVING = frozenset({"Repartition", "RepartitionByExpression"})
SLICES = "tallystick.slices"
SMALL_ROWS = 20_000
SMALL_BYTES = 4 << 20
"""Of a whole epoch. Measured were 350 rows, where fewer slices are better, and a million, where more are; the line
between them is not."""
EPOCHS_REMEMBERED = 4
UNGROUPED = 1 << 20
"""Tasks of a large epoch whose slices are named: more than it has, so that each slice is a task and Spark can start the
next one wherever one has ended."""


def slots_of(rows: DataFrame) -> int | None:
    """Driver, before the start: how many tasks of this query can run at once; None if the number of its tasks is not
    ours to choose (essay 1 and 2)."""
    context = rows.sparkSession.sparkContext
    if not (context.master or "").startswith("local") or not steps_of(rows) <= STATELESS:
        return None
    return int(context.defaultParallelism)


def names_slices(rows: DataFrame) -> bool:
    """Driver, before the start: whether the query says itself how many slices it has (essay 3)."""
    return not steps_of(rows).isdisjoint(MOVING)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Slicing:
    """Driver: the slices of one query's next epoch. Give it every epoch's `Seen`.

    ``slots`` are those of `slots_of`, ``follows`` says that the planner takes a number from us for each epoch, and
    ``named`` that the query names the number of its slices.
    """

    def __init__(self, slots: int | None, follows: bool, named: bool = False) -> None:
        self.grouped = named and follows and slots is not None
        self.tasks = slots if self.grouped or not named else None
        self._few = min(slots or 0, max(2, processors()))
        self._most = UNGROUPED if self.grouped else self.tasks
        self._follows = follows and self.tasks is not None
        self._small: deque[bool] = deque(maxlen=EPOCHS_REMEMBERED)
        self._now: int | None = None

    @classmethod
    def of(cls, rows: DataFrame) -> Slicing:
        """For a query of these rows."""
        extensions = rows.sparkSession.conf.get("spark.sql.extensions", "") or ""
        return cls(slots_of(rows), SLICES_CLASS in extensions.split(","), names_slices(rows))

    def saw(self, spark: SparkSession, slices: Sequence[Seen]) -> None:
        """``spark`` is the session of the query, which plans each epoch by the settings that it finds there."""
        if not self._follows:
            return
        rows, size = sum(seen.rows for seen in slices), sum(seen.bytes for seen in slices)
        self._small.append(rows <= SMALL_ROWS and size <= SMALL_BYTES)
        enough = len(self._small) == EPOCHS_REMEMBERED
        wanted = self._most if not all(self._small) else self._few if enough else self.tasks
        if wanted != self._now:
            self._now = wanted
            spark.conf.set(SLICES, str(wanted))

    def first(self, journal: Journal) -> int | None:
        """Of the first epoch after a start: those of the newest decision (essay 5); None if there is none."""
        if self.tasks is None or self.grouped:
            return None
        newest = [(record.attempt.epoch, len({vote.slice for vote in record.votes})) for record in journal.records()]
        return max(((epoch, count) for epoch, count in newest if count), default=(0, None))[1]
