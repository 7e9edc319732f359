"""Does a query keep state between epochs? Asked before it starts, of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATELESS = frozenset(
    {
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
    }
)
"""Steps of a plan that surely keep none."""


def may_keep_state(rows: DataFrame) -> bool:
    """Driver: False only if every step is known to keep none; a step that nobody thought of counts as one that does."""
    return not steps_of(rows) <= STATELESS


def steps_of(rows: DataFrame) -> set[str]:
    """Driver: what its plan consists of, by the names that Spark gives to its steps."""
    return _steps(rows._jdf.queryExecution().analyzed())


def _steps(plan: Any) -> set[str]:
    children = plan.children()
    below = (_steps(children.apply(number)) for number in range(children.size()))
    return {str(plan.nodeName())}.union(*below)
