"""The commit of objects: complete their uploads, as often as asked, with the effect of once.

1.  An upload that S3 still has is not published. Completing it makes the object appear whole, in one step, and never
    over another object (If-None-Match).
2.  An upload that is gone was completed, or aborted. The object itself tells: its metadata names the transaction.
3.  No object and no `completing` note: nobody ever tried to complete it, so a lifecycle rule or a person aborted it.
    It is expired: it is computed and written again.
4.  No object, but a `completing` note: either it was published and a consumer took the object away before this epoch
    was settled, or the driver died right before completing and the upload was aborted since. That cannot be told from
    here, and both guesses could be wrong: a person says which it was.
5.  An answer that got lost is not known: asked again, the upload or the object tells.
6.  Some stores say "completed" of an upload that another request is still completing, or was when the store died, and
    that one may fail yet. So only the answer to the first request is taken for what it says; after that the object
    itself must be seen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tallystick.records import Json, Outcome
from tallystick.s3.client import NO_SUCH_UPLOAD, NOT_FOUND, TAKEN, StoreError
from tallystick.sinks.s3.notes import COMPLETED, COMPLETING, Notes
from tallystick.sinks.s3.upload import NAME, parts_hash

AT_ONCE = 16
_FOR_A_PERSON = frozenset({"AccessDenied", "InvalidAccessKeyId", "NoSuchBucket", "SignatureDoesNotMatch"})
"""What waiting may cure only if somebody does something; asked again all the same, and said as an error."""

logger = logging.getLogger("tallystick.sinks.s3")


def complete_all(notes: Notes, committables: Sequence[Json]) -> list[Outcome]:
    """Commit them; several at once, because each is a few requests long."""
    if len(committables) == 1:
        return [_complete(notes, committables[0])]
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(committables)))) as pool:
        return list(pool.map(lambda committable: _complete(notes, committable), committables))


def _complete(notes: Notes, committable: Json) -> Outcome:
    """All uploads are looked at before the first one is completed: a slice is published whole or not at all."""
    name = committable["name"]
    try:
        found = [_look(notes, name, *described) for described in committable["objects"]]
        for ending in (Outcome.REFUSED, Outcome.EXPIRED):
            if ending in found:
                return ending
        alive = [parts for parts in found if not isinstance(parts, Outcome)]
        first = _note_completing(notes, name) if alive else False
        ended = [_complete_one(notes, name, parts, first) for parts in alive]
    except StoreError as error:
        level = logging.ERROR if error.code in _FOR_A_PERSON else logging.WARNING
        logger.log(level, "%s cannot be published in %s now, asking again later: %s", name, notes.bucket.name, error)
        return Outcome.RETRY_LATER
    if Outcome.REFUSED in ended:
        return Outcome.REFUSED
    return Outcome.COMMITTED if Outcome.COMMITTED in ended else Outcome.ALREADY_COMMITTED


@dataclass(frozen=True)
class _Parts:
    """What completes an upload."""

    key: str
    upload: str
    etags: tuple[str, ...]


def _look(notes: Notes, name: str, key: str, upload: str, count: int, digest: str) -> _Parts | Outcome:
    """The parts of an upload that S3 still has, or how it ended."""
    try:
        listed = notes.bucket.pages("list_parts", "Parts", Key=notes.prefix + key, UploadId=upload)
        etags = tuple(str(part["ETag"]) for part in listed)
    except StoreError as error:
        if error.code == NO_SUCH_UPLOAD:
            return _judge(notes, name, key)
        raise
    if len(etags) != count or parts_hash(etags) != digest:
        logger.error("the upload %s of %s holds other parts than were prepared: nothing is done", upload, key)
        return Outcome.REFUSED
    return _Parts(key, upload, etags)


def _complete_one(notes: Notes, name: str, parts: _Parts, first: bool) -> Outcome:
    """``first``: nobody asked for this before."""
    listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts.etags, start=1)]
    try:
        answer = notes.bucket.call(
            "complete_multipart_upload",
            Key=notes.prefix + parts.key,
            UploadId=parts.upload,
            MultipartUpload={"Parts": listed},
            IfNoneMatch="*",
        )
    except StoreError as error:
        if error.code == NO_SUCH_UPLOAD or error.code in TAKEN:
            return _judge(notes, name, parts.key)
        raise
    if not first or answer["ResponseMetadata"].get("RetryAttempts"):
        return _seen(notes, name, parts.key)
    return Outcome.COMMITTED


def _seen(notes: Notes, name: str, key: str) -> Outcome:
    """The store says that an upload is completed, to a request that was not the first one (essay 6)."""
    try:
        metadata = notes.bucket.call("head_object", Key=notes.prefix + key)["Metadata"]
    except StoreError as error:
        if error.code not in NOT_FOUND:
            raise
        raise StoreError(error.code, f"the store says that {key} is completed, but it is not there") from error
    return Outcome.COMMITTED if metadata.get(NAME) == name else _judge(notes, name, key)


def _note_completing(notes: Notes, name: str) -> bool:
    """True if nobody did so before."""
    try:
        notes.put(name, COMPLETING)
    except FileExistsError:
        logger.info("%s is being completed again", name)
        return False
    return True


def _judge(notes: Notes, name: str, key: str) -> Outcome:
    """The upload is gone, or an object stands where it was to go (essays 2 to 4)."""
    try:
        metadata = notes.bucket.call("head_object", Key=notes.prefix + key)["Metadata"]
    except StoreError as error:
        if error.code not in NOT_FOUND:
            raise
        return _without_object(notes, name, key)
    if metadata.get(NAME) == name:
        return Outcome.ALREADY_COMMITTED
    logger.error(
        "%s/%s%s is another object, and is not overwritten: move it away", notes.bucket.name, notes.prefix, key
    )
    return Outcome.REFUSED


def _without_object(notes: Notes, name: str, key: str) -> Outcome:
    if notes.has(name, COMPLETED):
        return Outcome.ALREADY_COMMITTED
    if not notes.has(name, COMPLETING):
        return Outcome.EXPIRED
    put = f"aws s3api put-object --bucket {notes.bucket.name} --key '{notes.root}{name}/{COMPLETED}'"
    forget = f"aws s3 rm 's3://{notes.bucket.name}/{notes.root}{name}/{COMPLETING}'"
    logger.error(
        "%s%s was being completed when the driver died, and neither the upload nor the object is there now. if a "
        "consumer took the object away: %s. if its upload was aborted: %s. then start the job again",
        notes.prefix,
        key,
        put,
        forget,
    )
    return Outcome.REFUSED
