"""The verbs of a sink that publishes files in a folder, on any file system. Essays: `publish.py`, `..staging`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from tallystick.records import Json, Outcome
from tallystick.sinks.base import OpenTransaction, SliceContext
from tallystick.sinks.files.publish import publish_all
from tallystick.sinks.files.rows import RowsAsFiles
from tallystick.sinks.files.settings import Settings
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.filesystem import FileSystem, Opened, P
from tallystick.sinks.staging import STAGED, Staging

STAGING = ".tallystick"


class FolderSink(RowsAsFiles[P], Generic[P]):
    """Staged beside the target, published by renaming."""

    def __init__(self, path: P, files: FileSystem[P], settings: Settings) -> None:
        super().__init__(settings)
        self.path = path
        self.staging = Staging(path / STAGING, files)

    @property
    def files(self) -> FileSystem[P]:
        return self.staging.files

    def begin_transaction(self, context: SliceContext) -> Transaction[P]:
        return self.step(lambda: self._begin(self.staging.begin(context), context))

    def _begin(self, folder: P, context: SliceContext) -> Transaction[P]:
        def create(number: int, final: str) -> Opened:
            return self.files.create(folder / staged_name(number))

        return Transaction(self.settings, context, folder, create)

    def seal(self, transaction: Transaction[P]) -> Json:
        closing = transaction.last_steps()
        committable = self.committable(transaction)
        self.files.finish([*closing, lambda: self.staging.draft(transaction.place, committable)])
        self.staging.seal(transaction.place)
        return committable

    def committable(self, transaction: Transaction[P]) -> Json:
        """Executor: what to publish, as (staged, final) names, in the order in which files were begun."""
        names = [[staged_name(number), final] for number, final in enumerate(transaction.finals)]
        return {"dir": self.staging.relative(transaction.place), "files": names}

    def rollback(self, transaction: Transaction[P]) -> None:
        transaction.discard()
        self.staging.roll_back(transaction.place)

    def commit(self, committable: Json) -> Outcome:
        return self.commit_all([committable], recovering=False)[0]

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return publish_all(self.path, self.staging, committables)

    def abort(self, committable: Json) -> None:
        self.step(lambda: self.staging.discard(self.staging.locate(committable["dir"])))

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return self.step(lambda: list(self.staging.open(job_id)))

    def settled(self, job_id: str, epoch: int) -> None:
        self.step(lambda: self.staging.settle(job_id, epoch))


def staged_name(number: int) -> str:
    return f"{number}{STAGED}"
