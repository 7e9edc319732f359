"""The S3 sink: multipart uploads prepared on executors, completed by the driver. Essays: `complete.py`, `notes.py`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

import pyarrow as pa

from tallystick.errors import ConfigError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.s3.client import Bucket
from tallystick.sinks.base import JobContext, OpenTransaction, SliceContext
from tallystick.sinks.files import settings as parse
from tallystick.sinks.files.rows import RowsAsFiles
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.filesystem import Opened
from tallystick.sinks.s3.complete import complete_all
from tallystick.sinks.s3.notes import Notes
from tallystick.sinks.s3.preflight import check_bucket
from tallystick.sinks.s3.upload import PART_BYTES_MIN, PARTS_MAX, Upload
from tallystick.sinks.staging import MANIFEST

BUFFER_BYTES = 256 << 10
"""Arrow writes in small pieces; each would be a call into Python."""


class Staged:
    """Where a slice is on its way to: its name, and one upload for each object."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uploads: list[Upload] = []


class S3(RowsAsFiles[Staged]):
    """Publish rows as objects of S3, or of a store that speaks its language.

    Readers need nothing special: whatever is below the path is committed, and each object appears whole. The objects
    of one epoch appear one after the other. Credentials are those that boto3 finds, on the driver and on executors.

    path             ``s3://BUCKET/PREFIX``; ``s3a:`` means the same
    format           parquet, orc, json (one object per line), csv or text (one string column)
    partition_by     columns that become part of the key, ``day=2026-01-31/``, and are not in the objects
    compression      None: the format's default. The same choices as in `Files`
    roll_bytes       begin a new object when this one is larger; always at the end of an epoch
    roll_age         begin a new object when this one is older, such as "5m"
    row_group_bytes  how many bytes of rows, in memory, make a row group (parquet) or stripe (orc)
    required         columns in which a null is a `RowRefusedError`
    header           csv: begin each object with the column names
    options          json and csv: options of Spark's to_json and to_csv, as in `Files`
    endpoint         the address of a store that is not Amazon's, ``http://HOST:PORT``; None: what boto3 finds
    region           None: what boto3 finds
    part_bytes       how much of an object is sent at once, and waits in memory until then; at least 5 MiB
    """

    facts = SinkFacts(
        "s3",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "multipart uploads prepared on executors, completed by the driver",
        "the store knows If-None-Match; the objects of an epoch appear one by one; consumers leave objects where they "
        "are until the epoch is settled",
    )

    def __init__(
        self,
        path: str,
        format: str = "parquet",  # noqa: A002 - the word that Spark uses
        partition_by: Sequence[str] = (),
        compression: str | None = None,
        roll_bytes: int | None = None,
        roll_age: str | None = None,
        row_group_bytes: int = 32 << 20,
        required: Sequence[str] = (),
        header: bool = False,
        options: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        part_bytes: int = 8 << 20,
    ) -> None:
        bucket, prefix = s3_path(path)
        if parse.positive_bytes("part_bytes", part_bytes) < PART_BYTES_MIN:
            raise ConfigError(f"part_bytes is {part_bytes}: S3 takes no parts below {PART_BYTES_MIN}")
        super().__init__(
            parse.checked(
                f"s3://{bucket}/{prefix}",
                format=format,
                partition_by=partition_by,
                compression=compression,
                roll_bytes=_at_most(roll_bytes, part_bytes * (PARTS_MAX - 1)),
                roll_age=roll_age,
                row_group_bytes=row_group_bytes,
                required=required,
                header=header,
                options=options,
            )
        )
        self.part_bytes = part_bytes
        self.notes = Notes(Bucket(bucket, endpoint, region), prefix)

    @property
    def look(self) -> str:
        return f"aws s3 ls {self.target}"

    def check(self, job: JobContext) -> None:
        """Try what a commit will do: begin an upload, find it, complete it, and be refused a second time."""
        check_bucket(self.notes)

    def begin_transaction(self, context: SliceContext) -> Transaction[Staged]:
        staged = Staged(self.notes.of(context))

        def create(number: int, final: str) -> Opened:
            upload = Upload(self.notes.bucket, self.notes.prefix + final, staged.name, self.part_bytes)
            staged.uploads.append(upload)
            file = pa.PythonFile(io.BufferedWriter(upload, BUFFER_BYTES), mode="w")
            return Opened(file, upload.abandon, upload.held_bytes)

        return Transaction(self.settings, context, staged, create)

    def seal(self, transaction: Transaction[Staged]) -> Json:
        for close in transaction.last_steps():
            close()
        staged = transaction.place
        objects = [
            [final, *upload.described()] for final, upload in zip(transaction.finals, staged.uploads, strict=True)
        ]
        committable = {"name": staged.name, "objects": objects}
        self.notes.put(staged.name, MANIFEST, committable)
        return committable

    def rollback(self, transaction: Transaction[Staged]) -> None:
        transaction.discard()
        for upload in transaction.place.uploads:
            upload.abandon()

    def commit(self, committable: Json) -> Outcome:
        return self.commit_all([committable], recovering=False)[0]

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return complete_all(self.notes, committables)

    def abort(self, committable: Json) -> None:
        self.step(lambda: self.notes.discard(committable))

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return self.step(lambda: list(self.notes.open(job_id)))

    def settled(self, job_id: str, epoch: int) -> None:
        self.step(lambda: self.notes.settle(job_id, epoch))


def _at_most(roll_bytes: int | None, most: int) -> int:
    """An upload has so many parts and no more; what is no number is told elsewhere."""
    return min(roll_bytes, most) if isinstance(roll_bytes, int) else most if roll_bytes is None else roll_bytes


def s3_path(path: str) -> tuple[str, str]:
    """Bucket and prefix; the prefix is empty or ends in a slash."""
    parts = urlsplit(str(path))
    if parts.scheme not in ("s3", "s3a") or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        raise ConfigError(f"{str(path)!r} is no place in S3: needed s3://BUCKET/PREFIX")
    prefix = str(path).partition("://")[2].partition("/")[2].strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ConfigError(f"{str(path)!r} has an empty part, '.' or '..' in its path: needed s3://BUCKET/PREFIX")
    return parts.netloc, f"{prefix}/" if prefix else ""
