"""The S3 client: boto3, the one that lets one process begin an upload and another one complete it.

Credentials come from where boto3 finds them (environment, profile, role of the machine) in every process anew: nothing
here holds, pickles or prints them. What boto3 raises becomes a `StoreError`, with S3's own code.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tallystick.errors import MissingExtraError

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
TRIES = 4
CONNECTIONS = 32

NO_SUCH_UPLOAD = "NoSuchUpload"
NOT_FOUND = frozenset({"404", "NoSuchKey", "NotFound"})
TAKEN = frozenset({"412", "PreconditionFailed"})
CONFLICT = frozenset({"409", "ConditionalRequestConflict"})
"""Two puts met in the store, and neither has won yet."""
PUT = "tallystick-put"
"""The metadata of an object that says which put made it."""

_clients: dict[tuple[str | None, str | None], Any] = {}


class StoreError(OSError):
    """S3 said no, or did not answer. ``code`` is S3's own, or the name of the failure on the way there."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(errno.EIO, f"{words} ({code})" if code not in words else words)
        self.code = code


@dataclass(frozen=True)
class Bucket:
    """One bucket at one endpoint. A value without secrets: every process makes its own client for it."""

    name: str
    endpoint: str | None = None
    region: str | None = None

    def call(self, operation: str, **arguments: Any) -> Any:
        """One request, such as ``call("head_object", Key=…)``. Raises `StoreError`."""
        with told():
            return getattr(self._client, operation)(Bucket=self.name, **arguments)

    def pages(self, operation: str, found: str, **arguments: Any) -> Iterator[Any]:
        """All entries of a listing, however many requests it takes."""
        with told():
            for page in self._client.get_paginator(operation).paginate(Bucket=self.name, **arguments):
                yield from page.get(found, ())

    def create(self, key: str, data: bytes) -> bool:
        """Create an object whole, or change nothing because one is there. True if this call created it.

        An answer can get lost; the client then asks again, and may be refused because of its own first try. So every
        object carries the name of the put that made it: whose name stands there is the one who created it. If nothing
        stands there after a failure, the failure is raised; the put may still arrive.
        """
        mine = uuid.uuid4().hex
        for left in reversed(range(TRIES)):
            try:
                self.call("put_object", Key=key, Body=data, IfNoneMatch="*", Metadata={PUT: mine})
            except StoreError as error:
                if error.code in TAKEN:
                    return self._creator(key) == mine
                if error.code in CONFLICT and left:
                    continue
                return self._settled(key, mine, error)
            else:
                return True
        return False

    def _settled(self, key: str, mine: str, failure: StoreError) -> bool:
        """After a failure of which nobody knows what it did: what is there decides."""
        try:
            creator = self._creator(key)
        except StoreError:
            raise failure from None
        if creator is None:
            raise failure
        return creator == mine

    def _creator(self, key: str) -> str | None:
        """Whose put made an object; None if there is none, and nothing if it does not say."""
        try:
            return str(self.call("head_object", Key=key)["Metadata"].get(PUT, ""))
        except StoreError as error:
            if error.code in NOT_FOUND:  # deleted again: whoever made it, it does not stand
                return None
            raise

    @property
    def _client(self) -> Any:
        key = (self.endpoint, self.region)
        if key not in _clients:
            _clients[key] = _connect(*key)
        return _clients[key]


def _connect(endpoint: str | None, region: str | None) -> Any:
    boto3 = library()
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"max_attempts": TRIES, "mode": "standard"},
        max_pool_connections=CONNECTIONS,
        # parts carry an MD5, which every S3 checks; trailing checksums are refused by some that are not Amazon's
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    with told():
        return boto3.session.Session(region_name=region).client("s3", endpoint_url=endpoint, config=config)


def region_found() -> str | None:
    """The region that boto3 finds in the environment or the profile; None if there is none."""
    with told():
        named = library().session.Session().region_name
    return None if named is None else str(named)


def library() -> Any:
    try:
        import boto3
    except ImportError as cause:
        raise MissingExtraError(
            f"S3 needs the package boto3, which cannot be imported here ({cause}). on this machine, and on every "
            "machine that runs executors: pip install 'tallystick[s3]'"
        ) from cause
    return boto3


@contextmanager
def told() -> Iterator[None]:
    library()
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        said = error.response.get("Error", {})
        raise StoreError(str(said.get("Code", "")), str(said.get("Message", "")) or str(error)) from error
    except BotoCoreError as error:
        raise StoreError(type(error).__name__, str(error)) from error
