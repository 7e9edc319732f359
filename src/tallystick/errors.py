"""Every error that this package raises, as one tree.

::

    TallystickError
    ├── ConfigError              a job or setting that cannot work, found when it is declared
    ├── JobFileError             the user's Python file cannot be used
    ├── MissingExtraError        a connector whose client library is not installed
    ├── SetupError               this machine lacks something: java, a download, a server that starts
    ├── DriverLostError          the JVM of Spark ended under the job; a new process goes on
    ├── CheckpointError          the checkpoint cannot be used
    │   ├── ForeignCheckpointError   it belongs to another job, or its offsets are not the ones decided on
    │   ├── CheckpointInUseError     another living driver holds it
    │   └── NewerCheckpointError     a newer version of this package wrote it
    ├── JournalError             the journal cannot be read or written
    │   └── JournalCorruptError      a record is torn, truncated or not ours; names the file
    ├── EpochError               one epoch could not be finished
    │   ├── PrepareError             a slice could not be staged; the epoch was aborted
    │   ├── FencedError              another driver has taken over; this one must stop
    │   ├── ExpiredError             a decided transaction was rolled back by its server; a restart rewrites it
    │   ├── CommitPendingError       decided, but not confirmed yet; a restart goes on committing
    │   ├── CommitRefusedError       the server refuses a decided commit; needs a person
    │   └── ConflictError            what must be rewritten differs from what was decided; needs a person
    ├── UnprovenError            the prover cannot judge a job: something that a proof needs is missing
    ├── SourceError              a source cannot be read: it does not answer, or records are gone
    │   └── ReceiverLogCorruptError  a receiver log is damaged where it was durable; names the file
    └── SinkError                a sink found something wrong with its target or with a row
        ├── RowRefusedError          a row that the format or server cannot hold
        └── NotAllowedError          this user may not do that, or not even ask

Errors travel from executors to the driver, so each one survives pickling. Their texts say what failed, what
was found, what is needed and what to type next; in lower case, without blame.
"""

from __future__ import annotations

from typing import Any


class TallystickError(Exception):
    """The root: ``except TallystickError`` catches whatever this package raises on purpose."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self.details))


def _rebuild(kind: type[TallystickError], message: str, details: dict[str, Any]) -> TallystickError:
    return kind(message, **details)


class ConfigError(TallystickError):
    """A job, option or setting is wrong. Raised when it is declared; nothing has been written."""


class JobFileError(TallystickError):
    """The user's Python file cannot be used. ``details`` holds its path and line."""


class MissingExtraError(TallystickError):
    """A connector's client library is not installed. The text holds the exact ``pip install``."""


class SetupError(TallystickError):
    """This machine lacks something that is needed: java, a download, a server that starts."""


class DriverLostError(TallystickError):
    """Spark's JVM ended or does not answer any more. Nothing is lost: start the job again, in a new process."""


class CheckpointError(TallystickError):
    """The checkpoint location cannot be used by this job."""


class ForeignCheckpointError(CheckpointError):
    """The checkpoint belongs to another job, or does not hold what was decided on."""


class CheckpointInUseError(CheckpointError):
    """Another living driver holds this checkpoint."""


class NewerCheckpointError(CheckpointError):
    """The checkpoint was written by a newer version of this package."""


class JournalError(TallystickError):
    """The journal cannot be read or written. After this error nothing is known about the last write."""


class JournalCorruptError(JournalError):
    """A journal file is torn, truncated, unreadable or not ours. ``details["file"]`` names it."""


class EpochError(TallystickError):
    """An epoch could not be finished. ``details["epoch"]`` names it."""


class PrepareError(EpochError):
    """A slice could not be staged. The attempt was aborted; nothing of it was published."""


class FencedError(EpochError):
    """Another driver has taken this job over. This one has stopped and published nothing more."""


class ExpiredError(EpochError):
    """A transaction was rolled back by its server after the decision. Nothing is lost: a restart rewrites it."""


class CommitPendingError(EpochError):
    """The epoch is decided but not every commit is confirmed. A restart goes on where this run stopped."""


class CommitRefusedError(EpochError):
    """The server refuses a commit that was decided. Nothing was dropped; the cause must be removed."""


class ConflictError(EpochError):
    """Expired slices would have to be rewritten, but the replay gives other rows. A person must choose."""


class UnprovenError(TallystickError):
    """The prover cannot judge this job. The text says what was found, ``details["needed"]`` what is missing."""

    def __init__(self, message: str, /, needed: str = "", **details: Any) -> None:
        super().__init__(message, **({"needed": needed} if needed else {}), **details)

    @property
    def needed(self) -> str:
        return str(self.details.get("needed", ""))


class SourceError(TallystickError):
    """A source cannot be read: it does not answer, or records that were not read yet are gone."""


class ReceiverLogCorruptError(SourceError):
    """A receiver log is damaged or cut where it was durable. ``details["file"]`` names it. Nothing was skipped."""


class SinkError(TallystickError):
    """A sink found something wrong with its target."""


class RowRefusedError(SinkError):
    """A row cannot be held by the format or was refused by the server."""


class NotAllowedError(SinkError):
    """The server does not allow this user to do that, or even to ask."""
