"""One object on its way: a multipart upload that nobody sees before it is completed.

Parts are sent as they fill, so a slice of any size needs the memory of one part. S3 wants at least 5 MiB in every part
but the last, and has at most 10,000 of them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
from collections.abc import Iterable
from typing import Any

from tallystick.records import Json
from tallystick.s3.client import NO_SUCH_UPLOAD, Bucket, StoreError

PART_BYTES_MIN = 5 << 20
PARTS_MAX = 10_000
NAME = "tallystick"
"""The metadata of an object that says which transaction it is from."""

logger = logging.getLogger("tallystick.sinks.s3")


class Upload(io.RawIOBase):
    """A raw output for Arrow. `close` sends the last part; after `abandon` nothing is sent any more."""

    def __init__(self, bucket: Bucket, key: str, transaction: str, part_bytes: int) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._etags: list[str] = []
        self._alive = True
        answer = bucket.call("create_multipart_upload", Key=key, Metadata={NAME: transaction})
        self.id = str(answer["UploadId"])

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._alive:
            raise OSError("the upload was given up")
        self._waiting += data
        while len(self._waiting) >= self._part_bytes:
            self._send(bytes(self._waiting[: self._part_bytes]))
            del self._waiting[: self._part_bytes]
        return len(data)

    def held_bytes(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        if self._alive and not self.closed:
            self._alive = False
            if self._waiting or not self._etags:
                self._send(bytes(self._waiting))
            self._waiting.clear()
        super().close()

    def roll_back(self) -> None:
        """Nothing more is sent, and S3 forgets what was."""
        self._alive = False
        self._waiting.clear()
        abort(self._bucket, self._key, self.id)

    def abandon(self) -> None:
        """Roll the upload back. If S3 does not answer now, the driver finds the upload later."""
        try:
            self.roll_back()
        except StoreError as error:
            logger.warning("the upload of %s cannot be aborted now, the driver does it later: %s", self._key, error)

    def described(self) -> list[Json]:
        """Which upload it is, how many parts it has, and a hash over them."""
        return [self.id, len(self._etags), parts_hash(self._etags)]

    def _send(self, data: bytes) -> None:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        answer = self._bucket.call(
            "upload_part",
            Key=self._key,
            UploadId=self.id,
            PartNumber=len(self._etags) + 1,
            Body=data,
            ContentMD5=digest,
        )
        self._etags.append(str(answer["ETag"]))


def parts_hash(etags: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(etags).encode(), digest_size=8).hexdigest()


def abort(bucket: Bucket, key: str, upload_id: str) -> None:
    """Harmless if it is aborted or completed."""
    try:
        bucket.call("abort_multipart_upload", Key=key, UploadId=upload_id)
    except StoreError as error:
        if error.code != NO_SUCH_UPLOAD:
            raise
