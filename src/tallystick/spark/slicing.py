"""How many slices an epoch has: as many as the job can write at the same time.

Without this every partition of the source is a slice. Each one costs an epoch a Python task, and a transaction of each
sink; more of them than there are task slots make an epoch longer and nothing shorter. So tasks take over several
partitions of the source, one after the other.

1.  *Only on one machine.* There Spark puts neighbours together, the same ones in every replay. On a cluster it goes by
    where executors are, and those change.
2.  *Only where no step moves rows between tasks.* A shuffle has its own number of partitions, and state is bound to it.
3.  *Who wants another number says so*, with ``repartition`` or ``coalesce`` in the query's own steps: then it stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.spark.state import STATELESS, steps_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOVING = frozenset({"Repartition", "RepartitionByExpression"})


def sliced(rows: DataFrame) -> DataFrame:
    """Driver, once per query: the same rows in no more slices than can be written at once."""
    context = rows.sparkSession.sparkContext
    if not (context.master or "").startswith("local") or not steps_of(rows) <= STATELESS - MOVING:
        return rows
    return rows.coalesce(context.defaultParallelism)
