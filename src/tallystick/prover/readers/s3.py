"""Objects of S3: every one that is listed is committed, and whole."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tallystick.errors import SinkError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader
from tallystick.prover.readers.file_rows import is_visible, items_of
from tallystick.s3.client import NOT_FOUND, Bucket, StoreError
from tallystick.servers.s3 import REGION
from tallystick.sinks.s3 import S3
from tallystick.sinks.s3.notes import Notes

BUCKET = "prove"
MADE = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


class S3Reader(Reader):
    kind = "s3"
    servers = ("s3",)

    def __init__(self, sink: S3, place: Place) -> None:
        super().__init__(sink, place)
        self._known: dict[str, tuple[Item, ...]] = {}

    @classmethod
    def redirect(cls, sink: S3, name: str, place: Place) -> S3:
        prefix = f"{place.table_name(name)}/"
        made = copy.copy(sink)
        made.settings = replace(sink.settings, target=f"s3://{BUCKET}/{prefix}")
        made.notes = Notes(Bucket(BUCKET, place.server_for_job("s3"), REGION), prefix)
        return made

    @classmethod
    def prepare(cls, sink: S3, place: Place) -> None:
        try:
            sink.notes.bucket.call("create_bucket")
        except StoreError as failure:
            if failure.code not in MADE:
                raise SinkError(f"the bucket {BUCKET} cannot be made: {failure.strerror}") from failure

    def read(self) -> Mapping[str, Sequence[Item]]:
        """An object never changes once it is there, so each is fetched once."""
        bucket, prefix = self.sink.notes.bucket, self.sink.notes.prefix
        found = {}
        try:
            for entry in bucket.pages("list_objects_v2", "Contents", Prefix=prefix):
                name = str(entry["Key"]).removeprefix(prefix)
                if not is_visible(name):
                    continue
                if name not in self._known:
                    try:
                        data = bucket.call("get_object", Key=entry["Key"])["Body"].read()
                    except StoreError as failure:
                        if failure.code in NOT_FOUND:  # gone since it was listed, and the next read says so
                            continue
                        raise
                    self._known[name] = items_of(name, data, self.sink.settings)
                found[name] = self._known[name]
        except StoreError as failure:
            raise SinkError(f"{self.sink.target} cannot be read: {failure.strerror}") from failure
        return found
