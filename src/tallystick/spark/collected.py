"""What the tasks of an epoch hand back, brought to Python in one answer of the JVM.

``DataFrame.collect`` plans a query on top of the epoch's rows and serves its result through a socket of its own: 9 ms
before the tasks start and 7 ms after they end, on two cores, for a handful of short texts. Two ways are shorter:

1.  *A class of ours in Spark's JVM* (``EpochVotes.java``) runs the job and joins its texts, in one call. Sessions of
    `session.session` on one machine have it. Py4J looks a class up by its name, part by part, whenever it is named: two
    milliseconds, so that is done once for a query.
2.  *Without it* what ``foreachBatch`` hands over, an RDD already, is collected as it is. Its rows are Spark's own
    (`UnsafeRow`), which print themselves as the 64-bit words that they consist of; the text of all of them is one
    answer, whatever their number. A dozen calls instead of one, and Spark inspects the job's closures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tallystick.errors import EpochError
from tallystick.jvm.classes import VOTES_CLASS
from tallystick.records import Json
from tallystick.spark.file_manager import has_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORD_BYTES = 8
HEAD_WORDS = 2
"""A row of one text: which columns are null, then where the text begins and its length."""

Collect = Callable[["DataFrame", Mapping[str, str]], list[Json]]
"""Driver, inside ``foreachBatch``: evaluate these rows once. They have one column, a JSON text that is never null, and
each task gives one row at the most: Spark uses the memory of a row again for the next one. The mapping holds local
properties for the tasks of this Spark job, and for no job after it."""


def collector(spark: SparkSession) -> Collect:
    """Driver, once per query: the way that its session has."""
    return by_one_call(spark) if has_class(spark, VOTES_CLASS) else by_printed_rows


def by_one_call(spark: SparkSession) -> Collect:
    votes: Any = spark._jvm
    for name in VOTES_CLASS.split("."):
        votes = getattr(votes, name)
    call = votes.collect

    def collect(rows: DataFrame, properties: Mapping[str, str]) -> list[Json]:
        pairs = "\0".join(text for pair in properties.items() for text in pair)
        found: list[Json] = json.loads(call(rows._jdf, pairs))
        return found

    return collect


def by_printed_rows(rows: DataFrame, properties: Mapping[str, str]) -> list[Json]:
    context = rows.sparkSession.sparkContext
    for name, value in properties.items():
        context.setLocalProperty(name, value)
    try:
        printed = _rdd(rows._jdf).toJavaRDD().collect().toString()
    finally:
        for name in properties:
            context.setLocalProperty(name, "")
    return [json.loads(text) for text in texts(printed)]


def _rdd(frame: Any) -> Any:
    plan = frame.queryExecution().logical()
    return plan.rdd() if plan.nodeName() == "LogicalRDD" else frame.queryExecution().toRdd()


def texts(printed: str) -> list[str]:
    """The texts of printed rows: ``[[0,1000000005,6f6c6c6568], …]``."""
    return [_text(row) for row in re.findall(r"\[([^][]+)\]", printed)]


def _text(row: str) -> str:
    try:
        words = [int(word, 16) for word in row.split(",")]
        nulls, place = words[:HEAD_WORDS]
        start, length = place >> 32, place & 0xFFFFFFFF
        if nulls or start != HEAD_WORDS * WORD_BYTES or -(-length // WORD_BYTES) != len(words) - HEAD_WORDS:
            raise ValueError(f"nulls {nulls:x}, a text of {length} bytes at {start} in {len(words)} words")
        data = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words[HEAD_WORDS:])
        return data[:length].decode()
    except ValueError as cause:
        raise EpochError(
            f"a row of this Spark is not laid out as a text: {cause}, found {row[:80]!r}. nothing was published. use "
            "the Spark that this version of tallystick names"
        ) from cause
