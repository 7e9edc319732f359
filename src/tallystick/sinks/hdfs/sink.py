"""The HDFS sink: the file sink on HDFS. Essays: `filesystem.py`, `..files.publish`, `..staging`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from tallystick.errors import ConfigError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import JobContext
from tallystick.sinks.files import settings as parse
from tallystick.sinks.files.folder import STAGING, FolderSink
from tallystick.sinks.hdfs.client import unreachable
from tallystick.sinks.hdfs.filesystem import HdfsFiles


class HDFS(FolderSink[PurePosixPath]):
    """Publish rows as rolling files in a folder of HDFS.

    Readers need nothing special: whatever is in the folder is committed, and each file appears whole. The files of
    one epoch appear one after the other. Executors write to HDFS themselves, without a JVM.

    path             ``hdfs://HOST:PORT/FOLDER``, or ``hdfs://NAMESERVICE/FOLDER`` with the Hadoop settings that name
                     its NameNodes; made if it is not there
    format           parquet, orc, json (one object per line), csv or text (one string column)
    partition_by     columns that become folders, ``day=2026-01-31/``, and are not in the files
    compression      None: the format's default. The same choices as in `Files`
    roll_bytes       begin a new file when this one is larger; always at the end of an epoch
    roll_age         begin a new file when this one is older, such as "5m"
    row_group_bytes  how many bytes of rows, in memory, make a row group (parquet) or stripe (orc)
    required         columns in which a null is a `RowRefusedError`
    header           csv: begin each file with the column names
    options          json and csv: options of Spark's to_json and to_csv, as in `Files`
    hadoop           settings of Hadoop's client, on top of those in HADOOP_CONF_DIR. No secrets: Kerberos takes its
                     ticket from the machine
    """

    facts = SinkFacts(
        "hdfs",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "staged beside the target, published by the NameNode's atomic rename",
        "the files of an epoch appear one by one",
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
        hadoop: Mapping[str, str] | None = None,
    ) -> None:
        address, folder = hdfs_path(path)
        settings = parse.checked(
            f"{address}{folder}",
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
        super().__init__(folder, HdfsFiles(address, dict(hadoop or {})), settings)
        self.address = address

    @property
    def look(self) -> str:
        return f"hdfs dfs -ls {self.target}; hdfs dfs -df {self.target}"

    def check(self, job: JobContext) -> None:
        """Make the folder if needed, and try what a commit will do: write, sync, rename."""
        files, name = self.files, uuid.uuid4().hex
        probe, landed = self.staging.root / f"probe-{name}", self.path / f"{STAGING}-{name}"
        try:
            if files.exists(self.path) and not files.is_dir(self.path):
                raise SinkError(f"{self.target} is a file, needed a folder: move it away or choose another path")
            files.make_folder(self.staging.root)
            try:
                files.write(probe, b"tallystick")
                files.rename(probe, landed)
            finally:
                files.delete(probe)
                files.delete(landed)
        except OSError as error:
            raise unreachable(self.address, error) from error


def hdfs_path(path: str) -> tuple[str, PurePosixPath]:
    """Address and folder. As with Spark, nothing in the folder is percent-decoded."""
    parts = urlsplit(str(path))
    if parts.scheme != "hdfs" or not parts.netloc or not parts.path.strip("/") or "@" in parts.netloc:
        raise ConfigError(f"{str(path)!r} is no folder of HDFS: needed hdfs://HOST:PORT/FOLDER")
    if parts.query or parts.fragment or any(part in (".", "..") for part in parts.path.split("/")):
        raise ConfigError(f"{str(path)!r} is no plain path: needed hdfs://HOST:PORT/FOLDER, without '?', '#' and '..'")
    return f"hdfs://{parts.netloc}", PurePosixPath("/" + parts.path.strip("/"))
