"""The file sink: staged beside the target, published by renaming. Essays: `publish.py`, `..staging`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tallystick.errors import SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import JobContext
from tallystick.sinks.files import settings as parse
from tallystick.sinks.files.folder import STAGING, FolderSink
from tallystick.sinks.filesystem import Posix


class Files(FolderSink[Path]):
    """Publish rows as files in a folder of a local or mounted POSIX file system.

    Readers need nothing special: whatever is in the folder is committed, and each file appears whole. The files of
    one epoch appear one after the other.

    path             the folder; made if it is not there. Driver and executors must see it under the same path
    format           parquet, orc, json (one object per line), csv or text (one string column)
    partition_by     columns that become folders, ``day=2026-01-31/``, and are not in the files
    compression      None: the format's default (parquet snappy, orc zstd, others none). json, csv and text take
                     gzip and bzip2, and zstd and lz4, which Spark reads only with Hadoop's native libraries or not
                     at all
    roll_bytes       begin a new file when this one is larger; always at the end of an epoch
    roll_age         begin a new file when this one is older, such as "5m"
    row_group_bytes  how many bytes of rows, in memory, make a row group (parquet) or stripe (orc)
    required         columns in which a null is a `RowRefusedError`
    header           csv: begin each file with the column names
    options          json and csv: options of Spark's to_json and to_csv. As in Spark, null fields are left out of JSON
                     unless ``ignoreNullFields`` is "false". Unlike in Spark, timestamps keep their microseconds, and
                     CSV keeps spaces and doubles quotes: Spark reads such files with escape='"', and with multiLine
                     if values have line breaks
    """

    facts = SinkFacts(
        "files",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "staged beside the target, published by an atomic rename",
        "one POSIX file system that the driver and all executors share; the files of an epoch appear one by one",
    )

    def __init__(
        self,
        path: str | Path,
        format: str = "parquet",  # noqa: A002 - the word that Spark uses
        partition_by: Sequence[str] = (),
        compression: str | None = None,
        roll_bytes: int | None = None,
        roll_age: str | None = None,
        row_group_bytes: int = 32 << 20,
        required: Sequence[str] = (),
        header: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        folder = parse.posix_path(path)
        settings = parse.checked(
            str(folder),
            format=format,
            partition_by=partition_by,
            compression=compression,
            roll_bytes=roll_bytes,
            roll_age=roll_age,
            row_group_bytes=row_group_bytes,
            required=required,
            header=header,
            options=options,
        )
        super().__init__(folder, Posix(), settings)

    @property
    def target(self) -> str:
        return f"file:{self.path}"

    @property
    def look(self) -> str:
        return f"ls -ld {self.path}; df {self.path}"

    def check(self, job: JobContext) -> None:
        """Make the folder if needed, and try what a commit will do: write, fsync, rename."""
        if self.path.exists() and not self.path.is_dir():
            raise SinkError(f"{self.path} is a file, needed a folder: move it away or choose another path")
        probe, landed = self.staging.root / f"probe-{uuid.uuid4().hex}", self.path / f"{STAGING}-{uuid.uuid4().hex}"
        try:
            self.staging.root.mkdir(parents=True, exist_ok=True)
            self._check_one_file_system()
            try:
                probe.write_bytes(b"tallystick")
                probe.rename(landed)
            finally:
                probe.unlink(missing_ok=True)
                landed.unlink(missing_ok=True)
        except OSError as error:
            raise SinkError(
                f"cannot publish files in {self.path}: {error}. needed a folder that this user may write to, on a disk "
                f"with free space. look with: {self.look}"
            ) from error

    def _check_one_file_system(self) -> None:
        """A rename is atomic within one file system, and does not exist between two."""
        if self.path.stat().st_dev != self.staging.root.stat().st_dev:
            raise SinkError(
                f"{self.staging.root} is on another file system than {self.path}, so files cannot be published by "
                f"renaming: unmount it or delete the link, then start the job again"
            )
