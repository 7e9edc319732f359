"""Which of a job's sources is which line of Spark's offset log.

Spark logs offsets in the order in which the plan reads the sources, from left to right, which need not be the order
of their declaration. A source is found in the plan by the number of its first column, which Spark gives to it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def source_names(rows: DataFrame, named: Mapping[str, DataFrame]) -> tuple[str, ...]:
    """Driver, before the start: names in the order of the offset log; ``source-N`` for one that was not declared."""
    known = {number: name for name, frame in named.items() for number in _leaves(frame)}
    order = list(dict.fromkeys(_leaves(rows)))
    return tuple(known.get(number, f"source-{place}") for place, number in enumerate(order))


def _leaves(frame: DataFrame) -> list[int]:
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        columns = leaf.output()
        if leaf.isStreaming() and columns.size():
            found.append(int(columns.apply(0).exprId().id()))
    return found
