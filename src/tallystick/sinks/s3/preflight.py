"""Before the first epoch: does the bucket do what exactly-once rests on, and may we?"""

from __future__ import annotations

import uuid
from contextlib import ExitStack

from tallystick.errors import SinkError
from tallystick.s3.client import TAKEN, StoreError
from tallystick.sinks.s3.notes import Notes
from tallystick.sinks.s3.upload import Upload

_HINTS = {
    "NoSuchBucket": "make it first: aws s3 mb s3://{bucket}",
    "AccessDenied": "needed s3:PutObject, GetObject, DeleteObject, AbortMultipartUpload, ListMultipartUploadParts, "
    "ListBucket and ListBucketMultipartUploads for this user",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run where the machine has "
    "a role",
    "NoRegionError": "set AWS_DEFAULT_REGION, or give the sink a region",
    "EndpointConnectionError": "is the store running, and is the endpoint right?",
}


def check_bucket(notes: Notes) -> None:
    """Begin an upload, find it, complete it, and be refused a second time; then take everything away again."""
    bucket, key = notes.bucket, f"{notes.root}probe-{uuid.uuid4().hex}"
    try:
        with ExitStack() as ending:
            upload = _begin(notes, key, ending)
            ending.callback(bucket.call, "delete_object", Key=key)
            _find(notes, key, upload)
            again = _begin(notes, key, ending)
            _complete(notes, key, upload)
            if _completes(notes, key, again):
                raise SinkError(
                    f"the store of s3://{bucket.name} overwrites objects that it was told not to (If-None-Match in "
                    "CompleteMultipartUpload): one job could destroy what another one published. needed a store that "
                    "knows it, such as Amazon's, or a newer version of this one"
                )
    except StoreError as error:
        hint = _HINTS.get(
            error.code,
            "needed a store that answers, may be written to and has free space. look with: "
            f"aws s3 ls s3://{bucket.name}/{notes.prefix}",
        )
        raise SinkError(
            f"s3://{bucket.name}/{notes.prefix} cannot be used: {error.strerror}. {hint.format(bucket=bucket.name)}"
        ) from error


def _begin(notes: Notes, key: str, ending: ExitStack) -> Upload:
    """An upload that is rolled back at the end, whatever happens."""
    upload = Upload(notes.bucket, key, "probe", part_bytes=5 << 20)
    ending.callback(upload.roll_back)
    return upload


def _find(notes: Notes, key: str, upload: Upload) -> None:
    found = [entry["UploadId"] for entry in notes.bucket.pages("list_multipart_uploads", "Uploads", Prefix=key)]
    if upload.id not in found:
        raise SinkError(
            f"the store of s3://{notes.bucket.name} does not list an upload that was just begun: what a dead job left "
            "could not be found. needed ListMultipartUploads that is up to date"
        )


def _complete(notes: Notes, key: str, upload: Upload) -> None:
    upload.write(b"tallystick")
    upload.close()
    parts = [
        {"PartNumber": part["PartNumber"], "ETag": part["ETag"]}
        for part in notes.bucket.pages("list_parts", "Parts", Key=key, UploadId=upload.id)
    ]
    notes.bucket.call(
        "complete_multipart_upload", Key=key, UploadId=upload.id, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
    )


def _completes(notes: Notes, key: str, upload: Upload) -> bool:
    try:
        _complete(notes, key, upload)
    except StoreError as error:
        if error.code in TAKEN:
            return False
        raise
    return True
