"""Phase one on the cluster: one Spark job writes every slice of every sink and brings the votes back."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tallystick.errors import PrepareError, RowRefusedError, SinkError
from tallystick.records import Vote
from tallystick.spark.batching import Seen
from tallystick.spark.cancelled import await_tasks
from tallystick.spark.collected import Collect
from tallystick.spark.outputs import Output, projection
from tallystick.spark.slices import VOTE_SCHEMA, Assignment, SliceTask
from tallystick.spark.whole import trouble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def voting(rows: DataFrame, outputs: Sequence[Output], task: SliceTask, tasks: int | None = None) -> DataFrame:
    """Driver, once per query: the streaming query whose rows are votes, one row per task.

    Writing is the last step of the query itself, so that Spark plans an epoch once. A query of our own on each epoch's
    rows would be planned on top, and every row would be copied from the one into the other. ``tasks`` is how many
    there are at the most, if that is for us to say (`slicing`). If they are to tell their slices apart
    (``task.grouped``), each row says which partition it was in before tasks took several of them.
    """
    shaped = rows.select(*projection(rows, outputs), *([F.spark_partition_id()] if task.grouped else []))
    return (shaped if tasks is None else shaped.coalesce(tasks)).mapInArrow(task, VOTE_SCHEMA)


def prepare_slices(
    votes: DataFrame,
    collect: Collect,
    work: Assignment,
    timeout_s: float,
    group: str | None,
    carried: Mapping[str, str] | None = None,
) -> tuple[tuple[Vote, ...], list[Seen]]:
    """Driver: evaluate the epoch once. Returns a vote per slice and sink, in slice order, and what each task saw.

    ``votes`` is an epoch of the query that `voting` made. Spark hands over exactly one result per task, whatever was
    retried or run twice, so the votes name exactly one transaction per slice. After ``timeout_s`` the Spark jobs of
    ``group`` (`group_of`) are cancelled. ``carried`` are further local properties for the tasks.
    """
    epoch = work.attempt.epoch
    with _cancelled_after(votes.sparkSession, timeout_s, group) as late:
        try:
            results: list[Any] = collect(votes, {Assignment.PROPERTY: work.to_text(), **(carried or {})})
        except (PySparkException, Py4JError) as failure:
            await_tasks(votes.sparkSession, group)
            if late.is_set():
                raise PrepareError(
                    f"epoch {epoch} was cancelled: it was not prepared within the checkpoint's timeout of "
                    f"{timeout_s:g} s. let the source give less per epoch, or raise Checkpoint(timeout=…)",
                    epoch=epoch,
                ) from failure
            raise PrepareError(
                f"epoch {epoch} could not be prepared: {cause_of(str(failure))}", epoch=epoch
            ) from failure
    found = [Vote.from_json(vote) for result in results for vote in result["votes"]]
    return tuple(sorted(found, key=lambda vote: vote.key)), [Seen(one["rows"], one["bytes"]) for one in results]


def group_of(spark: SparkSession) -> str | None:
    """Driver, inside an epoch: the group of its Spark jobs, which is the query's run: the same one in every epoch."""
    return spark.sparkContext.getLocalProperty("spark.jobGroup.id")


@contextmanager
def _cancelled_after(spark: SparkSession, timeout_s: float, group: str | None) -> Iterator[threading.Event]:
    """Cancel this epoch's Spark jobs when the time is up. The event says that this happened."""
    late = threading.Event()
    context = spark.sparkContext

    def cancel() -> None:
        late.set()
        if group is not None:
            context.cancelJobGroup(group)

    timer = threading.Timer(timeout_s, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


_KAFKA_LOSS = re.compile(r"Some data may have been lost .*?Reason: (?P<reason>.+?)\s+(?:with consumer|at )", re.DOTALL)
_FILE_GONE = re.compile(
    r"FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (?P<file>.+?)\. +File"
)
_OUR_ERROR = re.compile(
    rf"tallystick\.errors\.(?:{SinkError.__name__}|{RowRefusedError.__name__}|\w+Error): (?P<text>.+)"
)


def cause_of(text: str) -> str:
    """The words of the task's own error, without the stack traces of three languages around them."""
    ours = _OUR_ERROR.search(text)
    if ours is not None:
        return ours["text"].strip()
    lost = _KAFKA_LOSS.search(text)
    if lost is not None:
        return (
            f"records are gone that were not read yet ({' '.join(lost['reason'].split())}): retention has passed, or "
            "the topic was deleted. to go on without them start with a new checkpoint"
        )
    gone = _FILE_GONE.search(text)
    if gone is not None:
        return (
            f"the file {gone['file']} is gone while it was to be read. put it back and start the job again; to go on "
            "without its rows, put a file without rows in its place"
        )
    if (about_checkpoint := trouble(text)) is not None:
        return about_checkpoint
    missing = re.search(r"ModuleNotFoundError: No module named '(?P<module>[^']+)'", text)
    if missing is not None:
        return (
            f"the workers cannot import the module {missing['module']!r}: install it where they run, or call "
            f"pyspark.cloudpickle.register_pickle_by_value({missing['module']}) before the job starts"
        )
    raised = re.findall(r"^(?:\s*)(\w+(?:\.\w+)*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    return str(raised[-1]).strip() if raised else _in_the_jvm(text) or text.strip().splitlines()[0]


def _in_the_jvm(text: str) -> str:
    """Of a chain of causes those that Spark has named for people, ``[LIKE_THIS]``, and the one that began it."""
    chain = re.findall(r"^(?:Caused by)?: (\w+(?:\.\w+)+(?:: .+)?)$", text, flags=re.MULTILINE)
    named = [said for said in chain if re.search(r"\[[A-Z_.]+\]", said)]
    return "; ".join(dict.fromkeys([*named, *chain[-1:]]))
