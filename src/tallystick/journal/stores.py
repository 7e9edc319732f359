"""Which store a checkpoint location asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError
from tallystick.journal.posix import PosixStore
from tallystick.journal.store import Store
from tallystick.s3.place import is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)")


def open_store(location: str, spark: SparkSession | None = None) -> Store:
    """The journal's store at a location: a path or ``file:`` URI, S3, or a URI of Spark's Hadoop client.

    A location without a scheme is where Spark would put it: on ``fs.defaultFS`` if a session is given, else on
    this machine. As with Spark, nothing in a URI is percent-decoded. Creates nothing.
    """
    uri = _URI.fullmatch(location)
    scheme = uri["scheme"].lower() if uri else _default_scheme(spark)
    if scheme == "file":
        return PosixStore(_local_path(location, uri["rest"]) if uri else Path(location))
    if is_s3(location):
        from tallystick.journal.s3 import S3Store

        return S3Store(location)
    if spark is None:
        raise ConfigError(f"the journal at {location} is reached through Spark: a SparkSession is needed")
    from tallystick.journal.hadoop import HadoopStore  # brings PySpark, which a local journal does not need

    return HadoopStore(spark, location)


def _default_scheme(spark: SparkSession | None) -> str:
    if spark is None:
        return "file"
    from tallystick.journal.hadoop import default_scheme

    return default_scheme(spark)


def _local_path(location: str, rest: str) -> Path:
    path = re.sub(r"^//(?=/)", "", rest)
    if not path.startswith("/") or path.startswith("//"):
        raise ConfigError(f"{location} is no absolute path of this machine: needed file:///FOLDER")
    return Path(path)
