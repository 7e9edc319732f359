"""The journal in S3, or in a store that speaks its language: one object for each key, through boto3.

1.  *All or nothing, the first one wins.* An object is put whole, with ``If-None-Match: *``: the store refuses it if
    there is one, in one step of its own, whoever else tries. It is durable when the store answers.
2.  *An answer that got lost.* Every object carries the name of the put that made it. Whose name stands there is the
    one who created it; nothing there, and the put has failed for all that is known.
3.  *No folders.* A prefix that nothing is below is the same as one that never was. So whoever writes first puts an
    object that says "here is a journal", and looks for it before it writes again or takes an absence for an answer: a
    journal that was deleted under a running job is an error, and not "nothing was decided".

A store that ignores the condition would let two drivers both win. It is found out before a job starts: `spark/s3a.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.errors import JournalError
from tallystick.journal.keys import check_key, reach_inside_decide
from tallystick.journal.store import Store
from tallystick.s3.client import NOT_FOUND, StoreError, told
from tallystick.s3.place import place

HERE = ".here"
"""Essay 3. No key can name it: keys do not start with a dot."""

_GONE = "Gone"
_HINTS = {
    _GONE: "was the checkpoint deleted while the job runs? stop it",
    "NoSuchBucket": "make it first: aws s3 mb s3://{bucket}",
    "AccessDenied": "needed s3:PutObject, GetObject, DeleteObject and ListBucket for this user",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run where the machine has "
    "a role",
    "InvalidAccessKeyId": "are the credentials those of this store?",
    "SignatureDoesNotMatch": "are the credentials those of this store?",
    "EndpointConnectionError": "is the store running, and is the endpoint right (AWS_ENDPOINT_URL)?",
    "ConnectTimeoutError": "is the store running, and is the endpoint right (AWS_ENDPOINT_URL)?",
}


class S3Store(Store):
    """Objects below a URI. Needs no Spark; threads may share it.

    There is no lock in S3 that dies with its holder, so `try_lock` says True and fencing alone keeps two drivers
    apart.
    """

    def __init__(self, uri: str) -> None:
        self._bucket, self._prefix = place(uri)
        self._written = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._told(key, "written"):
            self._still_there()
            if not self._written:
                self._bucket.create(self._object(HERE), b"")
                self._written = True
            reach_inside_decide(key)
            return self._bucket.create(self._object(key), data)

    def read(self, key: str) -> bytes | None:
        check_key(key)
        with self._told(key, "read"):
            try:
                body = self._bucket.call("get_object", Key=self._object(key))["Body"]
                with told():
                    return bytes(body.read())
            except StoreError as error:
                if error.code not in NOT_FOUND:
                    raise
                self._still_there()
                return None

    def list(self, folder: str) -> list[str]:
        check_key(folder)
        prefix = f"{self._object(folder)}/"
        with self._told(folder, "listed"):
            entries = self._bucket.pages("list_objects_v2", "Contents", Prefix=prefix, Delimiter="/")
            names = sorted(entry["Key"].removeprefix(prefix) for entry in entries)
            if not names:
                self._still_there()
        return [name for name in names if name]  # S3A marks a folder by an empty object with a slash at its end

    def delete(self, key: str) -> None:
        check_key(key)
        with self._told(key, "deleted"):
            self._bucket.call("delete_object", Key=self._object(key))

    def locate(self, key: str) -> str:
        return f"s3a://{self._bucket.name}/{self._object(key)}"

    def try_lock(self) -> bool:
        return True

    def unlock(self) -> None:
        """Nothing is held."""

    def _object(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _still_there(self) -> None:
        """Essay 3."""
        try:
            if self._written:
                self._bucket.call("head_object", Key=self._object(HERE))
        except StoreError as error:
            if error.code not in NOT_FOUND:
                raise
            raise StoreError(_GONE, f"{self.locate(HERE)} is gone, and with it the journal") from error

    @contextmanager
    def _told(self, key: str, verb: str) -> Iterator[None]:
        """Every failure of the store, or of the way there, becomes a `JournalError` that names the object."""
        try:
            yield
        except StoreError as error:
            where, bucket = self.locate(key), self._bucket.name
            found = str(error.strerror).removesuffix(f" ({_GONE})")
            hint = advice(error.code, bucket, self._prefix)
            raise JournalError(f"{where} could not be {verb}: {found}. {hint}", file=where) from error


def advice(code: str, bucket: str, prefix: str) -> str:
    """What to do about a failure of the store, by its code."""
    return _HINTS.get(code, f"look with: aws s3 ls s3://{bucket}/{prefix}/").format(bucket=bucket)
