"""What Spark is told of an epoch that failed: its words, without the traces of Python and Java behind them.

Spark searches the text of a failure inside ``foreachBatch`` for signs that the query was stopped meanwhile: a job that
was cancelled with the query's own run, or an interruption. For the latter it has a regular expression that takes a
level of the JVM's stack for every character behind the words of a Py4J error. A trace of both languages overflows it:
then `query.stop()` amid an epoch prints a StackOverflowError. The failure itself, with its cause, is the coordinator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.errors import EpochError, TallystickError
from tallystick.spark.prepare import cause_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


INTERRUPTED = "java.lang.InterruptedException"
AS_SPARK_KNOWS_IT = f"py4j.protocol.Py4JJavaError: An error occurred while calling an epoch: {INTERRUPTED}"
"""By these words Spark knows an interruption. Only if it was told to stop does it look for them."""


def briefly(run_epoch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: the same, but a failure leaves without what caused it."""

    def run(rows: DataFrame, epoch: int) -> None:
        try:
            run_epoch(rows, epoch)
        except TallystickError as failure:
            raise type(failure)(_told(str(failure)), **failure.details) from None
        except (PySparkException, Py4JError) as failure:
            raise EpochError(_told(f"epoch {epoch} failed: {cause_of(str(failure))}"), epoch=epoch) from None

    return run


def _told(text: str) -> str:
    return text.replace(INTERRUPTED, AS_SPARK_KNOWS_IT)
