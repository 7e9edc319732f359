"""What the tasks of an epoch hand back, brought to Python in one answer of the JVM.

``DataFrame.collect`` plans a query on top of the epoch's rows and serves its result through a socket of its own: 9 ms
before the tasks start and 7 ms after they end, on two cores, for a handful of short texts; this way 5 and 3. What
``foreachBatch`` hands over is an RDD already, so it is collected as it is. Its rows are Spark's own (`UnsafeRow`),
which print themselves as the 64-bit words that they consist of; the text of all of them is one answer, whatever their
number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tallystick.errors import EpochError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORD_BYTES = 8
HEAD_WORDS = 2
"""A row of one text: which columns are null, then where the text begins and its length."""


def collected(rows: DataFrame) -> list[str]:
    """Driver, inside ``foreachBatch``: evaluate these rows once. They have one column, a text that is never null, and
    each task gives one row at the most: Spark uses the memory of a row again for the next one."""
    return texts(_rdd(rows._jdf).toJavaRDD().collect().toString())


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
