"""Checkpoints in S3: what Spark's JVM needs for them, and a proof before every start.

The journal is written through boto3, Spark's own logs and state by the JVM, through Hadoop's S3A and a checkpoint file
manager of ours. Why, and why nothing less will do: docs/decisions/0016-s3-uploads-completed-by-the-driver.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from tallystick.errors import ConfigError, JournalError
from tallystick.journal.s3 import advice
from tallystick.jvm.classes import S3_CLASS
from tallystick.s3.client import Bucket, StoreError, region_found
from tallystick.s3.place import place
from tallystick.spark.parts import S3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANAGER = S3_CLASS
CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""The SDK's own chain: environment, profile, web identity, container, machine. The places where boto3 looks, too."""

ONE_WAY = {"fs.s3a.optimized.copy.from.local.enabled": "false"}
"""Files of RocksDB go up as everything else does. S3A's own way for them is another client, which takes a server's
"100 Continue" for its answer where that comes late: moto's does."""
_PROVIDER = "fs.s3a.aws.credentials.provider"
_KEYS = "fs.s3a.access.key"
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
_WRITTEN = b"tallystick"
_ours: dict[str, str] = {}
"""What was set by us, so that it is not taken for a choice of the user's the next time."""


def tell_s3a(spark: SparkSession, location: str) -> None:
    """Driver: point Hadoop's client to where boto3 goes. What the session says about ``fs.s3a`` stays."""
    _need_jars(spark)
    bucket, _ = place(location)
    for name, value in _settings(bucket).items():
        if not _is_chosen(spark, name) and not (name == _PROVIDER and _is_chosen(spark, _KEYS)):
            spark.conf.set(name, value)
            _ours[name] = value


def prove(spark: SparkSession, location: str) -> None:
    """Driver, before a start: both ways to the store lead to the same place, and both are refused what is there.

    `ConfigError` if not, `JournalError` if the store does not answer. Writes one object below the location, and
    removes it.
    """
    bucket, prefix = place(location)
    key = f"{prefix}/tallystick/probe-{uuid.uuid4().hex}"
    with _asked(location):
        try:
            bucket.create(key, _WRITTEN)
            if bucket.create(key, b"again"):
                raise ConfigError(
                    f"the store of {location} overwrites objects that it was told not to (If-None-Match): two drivers "
                    "could both decide. needed a store that knows it, such as Amazon's, or a newer version of this one"
                )
            _prove_jvm(spark, f"s3a://{bucket.name}/{key}", location)
        finally:
            bucket.call("delete_object", Key=key)


def _prove_jvm(spark: SparkSession, probe: str, location: str) -> None:
    """Through the class that Spark will use, found as Spark finds it."""
    session: Any = spark
    jvm = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(probe)
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    manager = managers.create(path, session._jsparkSession.sessionState().newHadoopConf())
    stream = manager.createAtomic(path, False)
    stream.write(bytearray(b"by Spark"))
    try:
        stream.close()
    except Py4JJavaError as refused:
        if str(refused.java_exception.getClass().getName()) != _EXISTS:
            raise
    else:
        manager.delete(path)
        raise ConfigError(
            f"Spark writes to another place than {location}: it did not find what was put there. do fs.s3a.endpoint "
            "and AWS_ENDPOINT_URL name the same store? a session keeps the first one that it used for a bucket"
        )
    read = manager.open(path)
    try:
        found = bytes(read.readAllBytes())
    finally:
        read.close()
    if found != _WRITTEN:
        raise ConfigError(f"Spark reads something else at {probe} than was put there: are there two stores?")


def _need_jars(spark: SparkSession) -> None:
    session: Any = spark
    try:
        loader = session._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        for needed in ("org.apache.hadoop.fs.s3a.S3AFileSystem", S3_CLASS):
            loader.loadClass(needed)
    except Py4JJavaError as cause:
        raise ConfigError(
            "this Spark session cannot keep a checkpoint in S3. needed when its JVM starts: "
            f"ts.session(…, jvm_parts=('{S3}',)), or SparkSession.builder.config('spark.jars', ts.s3_jars())"
        ) from cause


def _settings(bucket: Bucket) -> Mapping[str, str]:
    region = bucket.region or region_found()
    if bucket.endpoint is None:
        return {**ONE_WAY, _PROVIDER: CREDENTIALS, **({"fs.s3a.endpoint.region": region} if region else {})}
    return {
        **ONE_WAY,
        _PROVIDER: CREDENTIALS,
        "fs.s3a.endpoint": bucket.endpoint,
        "fs.s3a.endpoint.region": region or "us-east-1",
        "fs.s3a.path.style.access": "true",
    }


def _is_chosen(spark: SparkSession, name: str) -> bool:
    set_here = spark.conf.get(name, None)
    if set_here is not None:
        return set_here != _ours.get(name)
    sources = spark.sparkContext._jsc.hadoopConfiguration().getPropertySources(name)
    return sources is not None and not all(str(source).endswith("-default.xml") for source in sources)


@contextmanager
def _asked(location: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        bucket, prefix = place(location)
        hint = advice(error.code, bucket.name, prefix)
        words = f"a checkpoint cannot be kept at {location}: {error.strerror}. {hint}"
        raise JournalError(words, file=location) from error
    except Py4JJavaError as error:
        found = str(error.java_exception.toString()).splitlines()[0]
        raise ConfigError(
            f"Spark cannot write a checkpoint to {location}: {found}. it looks for credentials in the environment of "
            "its JVM, in the AWS profile, or at the machine's role; other settings are Hadoop's, spark.hadoop.fs.s3a.…"
        ) from error
    except Py4JError as error:
        raise ConfigError(f"Spark cannot write a checkpoint to {location}: {error}") from error
