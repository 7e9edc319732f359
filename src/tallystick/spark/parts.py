"""JVM parts that a session can have beyond what PySpark ships: which jars they are."""

from __future__ import annotations

from tallystick.jvm import resolve
from tallystick.jvm.classes import JAR
from tallystick.s3.place import is_s3

KAFKA = "spark-kafka"
S3 = "spark-s3"
MAIN_JARS = {KAFKA: "spark-sql-kafka", S3: "hadoop-aws"}
"""By part: how the name of its main jar begins. A session that brings one itself does not get ours."""


def jars_of(part: str, brought: str = "") -> list[str]:
    """The jars of a part, fetched once if need be; for checkpoints in S3 with our own, which is part of this package.

    ``brought`` are the jars and packages that the session has anyway.
    """
    is_brought = part in MAIN_JARS and MAIN_JARS[part] in brought
    fetched = [] if is_brought else [str(jar) for jar in resolve(part)]
    return [*fetched, str(JAR)] if part == S3 else fetched


def jar_of_this_machine() -> str:
    """Our own jar for a session on one machine. By ``local:`` Spark takes it where it lies, and does not serve it to
    itself, which would make every session start 0.1 s later; but it cannot do so if the path has a space or a percent.
    """
    uri = JAR.as_uri().removeprefix("file://")
    return f"local:{uri}" if uri == str(JAR) else str(JAR)


def kafka_jars() -> str:
    """Spark's Kafka connector for a session that you make yourself; fetched once if need be.

    It goes before the session starts: ``SparkSession.builder.config("spark.jars", ts.kafka_jars())``.
    """
    return ",".join(jars_of(KAFKA))


def s3_jars() -> str:
    """What a checkpoint in S3 needs, for a session that you make yourself; fetched once if need be.

    It goes before the session starts: ``SparkSession.builder.config("spark.jars", ts.s3_jars())``.
    """
    return ",".join(jars_of(S3))


def parts_for(location: str) -> tuple[str, ...]:
    """What a checkpoint at this location needs."""
    return (S3,) if is_s3(location) else ()
