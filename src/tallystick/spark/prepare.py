"""Phase one on the cluster: one Spark job writes every slice of every sink and brings the votes back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.errors import PrepareError, RowRefusedError, SinkError
from tallystick.protocol import Prepare
from tallystick.records import Vote
from tallystick.sinks.base import TransactionalSink
from tallystick.spark.slices import VOTE_SCHEMA, SliceTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def prepare_slices(
    projected: DataFrame,
    command: Prepare,
    job_id: str,
    flat: bool,
    sinks: Mapping[str, TransactionalSink[Any]],
) -> tuple[Vote, ...]:
    """Driver: evaluate the epoch once. Returns a vote per slice and sink, in slice order.

    ``projected`` is laid out by `outputs.projection`. Spark hands over exactly one result per task, whatever was
    retried or run twice, so the votes name exactly one transaction per slice.
    """
    task = SliceTask(job_id, command.attempt, tuple(sinks.items()), flat, command.write, os.getpid())
    try:
        results = projected.mapInArrow(task, VOTE_SCHEMA).collect()
    except (PySparkException, Py4JError) as failure:
        raise PrepareError(
            f"epoch {command.attempt.epoch} could not be prepared: {_cause(str(failure))}", epoch=command.attempt.epoch
        ) from failure
    votes = [Vote.from_json(vote) for row in results for vote in json.loads(row.votes)]
    return tuple(sorted(votes, key=lambda vote: vote.key))


_OUR_ERROR = re.compile(
    rf"tallystick\.errors\.(?:{SinkError.__name__}|{RowRefusedError.__name__}|\w+Error): (?P<text>.+)"
)


def _cause(text: str) -> str:
    """The words of the task's own error, without the stack traces of three languages around them."""
    ours = _OUR_ERROR.search(text)
    if ours is not None:
        return ours["text"].strip()
    missing = re.search(r"ModuleNotFoundError: No module named '(?P<module>[^']+)'", text)
    if missing is not None:
        return (
            f"the workers cannot import the module {missing['module']!r}: install it where they run, or call "
            f"pyspark.cloudpickle.register_pickle_by_value({missing['module']}) before the job starts"
        )
    raised = re.findall(r"^(?:\s*)(\w+(?:\.\w+)*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    return str(raised[-1]).strip() if raised else text.strip().splitlines()[0]
