"""What is known of a job's transactions in the bucket itself, so that any process can find and end them::

    PREFIX/.tallystick/JOB/ATTEMPT/TRANSACTION/
        manifest       put by pre_commit: the committable
        completing     put by the first commit, before it completes anything
        completed      put by a person, to say that all of it was published (`complete.py`, essay 4)

Uploads without a manifest are transactions that were begun: the names of their keys say of which job and attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tallystick.errors import SinkError, TallystickError
from tallystick.records import Attempt, Json
from tallystick.s3.client import NOT_FOUND, Bucket, StoreError
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionState
from tallystick.sinks.files.transaction import job_tag
from tallystick.sinks.s3.upload import abort
from tallystick.sinks.staging import MANIFEST, job_folder, slice_of

COMPLETING = "completing"
COMPLETED = "completed"
DELETED_AT_ONCE = 1000
"""The most keys that S3 takes in one request to delete."""

_STEM = re.compile(r"(?:.*/)?part-(\d{12,})-(\d{6,})-(\d{7,})-(\d{9,})-\d{4,}-([0-9a-f]{8})[0-9a-f]{4}\.[^/]*")


@dataclass(frozen=True)
class Notes:
    """``prefix`` is where objects are published, with a slash at its end, or nothing."""

    bucket: Bucket
    prefix: str

    @property
    def root(self) -> str:
        return f"{self.prefix}.tallystick/"

    def of(self, context: SliceContext) -> str:
        """How a committable names a transaction."""
        return f"{job_folder(context.job_id)}/{context.attempt}/{context.name}"

    def put(self, transaction: str, note: str, value: Json = None) -> None:
        """Once. `FileExistsError` if it is there."""
        body = b"" if value is None else json.dumps(value).encode()
        if not self.bucket.create(self._key(transaction, note), body):
            raise FileExistsError(f"{self._key(transaction, note)} is there")

    def has(self, transaction: str, note: str) -> bool:
        try:
            self.bucket.call("head_object", Key=self._key(transaction, note))
        except StoreError as error:
            if error.code in NOT_FOUND:
                return False
            raise
        return True

    def open(self, job_id: str) -> Iterator[OpenTransaction]:
        """Driver: the transactions of a job whose uploads S3 still has."""
        uploads = self._uploads(job_id)
        for transaction in self._listed(job_id):
            committable = self._manifest(transaction)
            if committable is None:
                continue
            left = [uploads.pop((key, upload), None) for key, upload, *_ in self._objects(committable)]
            if any(left):
                yield _opened(transaction, TransactionState.PRE_COMMITTED, committable)
        begun: dict[str, list[Json]] = {}
        for (key, upload), name in uploads.items():
            begun.setdefault(f"{job_folder(job_id)}/{name}", []).append([key.removeprefix(self.prefix), upload])
        for transaction, objects in begun.items():
            yield _opened(transaction, TransactionState.BEGUN, {"name": transaction, "objects": objects})

    def discard(self, committable: Json) -> None:
        """Roll a transaction back: abort its uploads, then forget it. Harmless if it is gone."""
        for key, upload, *_ in self._objects(committable):
            abort(self.bucket, key, upload)
        self._forget([self._key(committable["name"], note) for note in (MANIFEST, COMPLETING, COMPLETED)])

    def settle(self, job_id: str, epoch: int) -> None:
        """Driver: every epoch up to this one is over. Two listings if there is nothing to do."""
        for (key, upload), name in self._uploads(job_id).items():
            if Attempt.parse(name.partition("/")[0]).epoch <= epoch:
                abort(self.bucket, key, upload)
        over = [transaction for transaction in self._listed(job_id) if _attempt(transaction).epoch <= epoch]
        self._forget([self._key(name, note) for name in over for note in (MANIFEST, COMPLETING, COMPLETED)])

    def _key(self, transaction: str, note: str) -> str:
        if len(transaction.split("/")) != 3 or ".." in transaction.split("/"):
            raise SinkError(f"not a transaction of {self.root}: found {transaction!r}, needed JOB/ATTEMPT/TRANSACTION")
        return f"{self.root}{transaction}/{note}"

    def _objects(self, committable: Json) -> Iterable[list[Json]]:
        return [[self.prefix + key, *rest] for key, *rest in committable["objects"]]

    def _listed(self, job_id: str) -> list[str]:
        """The transactions of a job that have a note."""
        start = f"{self.root}{job_folder(job_id)}/"
        keys = (entry["Key"] for entry in self.bucket.pages("list_objects_v2", "Contents", Prefix=start))
        return list(dict.fromkeys(key.removeprefix(self.root).rpartition("/")[0] for key in keys))

    def _uploads(self, job_id: str) -> dict[tuple[str, str], str]:
        """(key, upload) -> ATTEMPT/TRANSACTION, for every upload of this job that S3 has."""
        found = {}
        for entry in self.bucket.pages("list_multipart_uploads", "Uploads", Prefix=self.prefix):
            match = _STEM.fullmatch(entry["Key"])
            if match is not None and match[5] == job_tag(job_id):
                epoch, number, generation, task = map(int, match.groups()[:4])
                attempt = Attempt(epoch, generation)
                name = SliceContext(job_id, attempt, "", number, task).name
                found[entry["Key"], str(entry["UploadId"])] = f"{attempt}/{name}"
        return found

    def _manifest(self, transaction: str) -> Json | None:
        try:
            return json.loads(self.bucket.call("get_object", Key=self._key(transaction, MANIFEST))["Body"].read())
        except StoreError as error:
            if error.code in NOT_FOUND:
                return None
            raise

    def _forget(self, keys: list[str]) -> None:
        for start in range(0, len(keys), DELETED_AT_ONCE):
            some = [{"Key": key} for key in keys[start : start + DELETED_AT_ONCE]]
            answer = self.bucket.call("delete_objects", Delete={"Objects": some, "Quiet": True})
            for refused in answer.get("Errors", ()):
                raise StoreError(refused["Code"], f"{refused['Key']} cannot be deleted: {refused['Message']}")


def _attempt(transaction: str) -> Attempt:
    try:
        return Attempt.parse(transaction.split("/")[1])
    except (TallystickError, IndexError) as error:
        raise SinkError(f"{transaction} is not a note of this package: move it away") from error


def _opened(transaction: str, state: TransactionState, committable: Json) -> OpenTransaction:
    name = transaction.rpartition("/")[2]
    return OpenTransaction(_attempt(transaction), state, committable, name, slice_of(name))
