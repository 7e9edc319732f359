"""Before a query starts: is Spark's connector there, do the brokers answer, and do they have the topics?

Asked with Java's own client, which lives in the same JVM and is told exactly what the connector will be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tallystick.errors import ConfigError, SourceError
from tallystick.kafka.settings import PREFIX, KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
PATIENCE_MS = 15_000


def need_connector(spark: SparkSession) -> None:
    """Driver: a `ConfigError` unless this session can read Kafka."""
    from py4j.protocol import Py4JJavaError
    from pyspark import __version__

    try:
        _jvm(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(CONNECTOR)
    except Py4JJavaError as cause:
        raise ConfigError(
            "kafka: this Spark session has no Kafka connector. needed it when the JVM starts: "
            "ts.session(…, jvm_parts=('spark-kafka',)), or SparkSession.builder.config('spark.jars', ts.kafka_jars()), "
            f"or spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
        ) from cause


def check_brokers(spark: SparkSession, settings: KafkaSettings, topics: Sequence[str]) -> None:
    """Driver: a `ConfigError` for what stays wrong, a `SourceError` for what may pass."""
    jvm = _jvm(spark)
    with _admin(jvm, settings) as admin:
        wanted = jvm.java.util.ArrayList()
        for topic in topics:
            wanted.add(topic)
        try:
            (admin.describeTopics(wanted).allTopicNames() if topics else admin.listTopics().names()).get()
        except _java_error() as failure:
            raise _in_words(failure, settings, topics) from failure


@contextmanager
def _admin(jvm: Any, settings: KafkaSettings) -> Iterator[Any]:
    told = {name.removeprefix(PREFIX): value for name, value in settings.spark().items()}
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        told[name] = str(min(int(told.get(name, PATIENCE_MS)), PATIENCE_MS))
    properties = jvm.java.util.HashMap()
    for name, value in told.items():
        properties.put(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except _java_error() as failure:
        raise ConfigError(f"kafka: no client can be made: {_causes(failure)[1]}. look at {settings}") from failure
    try:
        yield admin
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _in_words(failure: Any, settings: KafkaSettings, topics: Sequence[str]) -> ConfigError | SourceError:
    kinds, message = _causes(failure)
    where, names = settings.servers, ", ".join(topics)
    if "UnknownTopicOrPartitionException" in kinds:
        return ConfigError(f"kafka: {where} does not have every topic of {names}: make it before the job starts")
    if "TopicAuthorizationException" in kinds or "ClusterAuthorizationException" in kinds:
        return ConfigError(f"kafka: this user may not read {names} ({message}): needed the rights Read and Describe")
    if any(kind.startswith(("Sasl", "Ssl", "SSL", "IllegalSasl", "UnsupportedSasl")) for kind in kinds):
        return ConfigError(f"kafka: {where} and this job do not accept each other: {message}. look at {settings}")
    if "TimeoutException" in kinds:
        return SourceError(
            f"kafka: {where} has not answered in {PATIENCE_MS // 1000} s ({message}). check that the brokers run, that "
            "this machine reaches the addresses that they advertise, and that security.protocol is that of the listener"
        )
    return SourceError(f"kafka: {where} could not be asked for its topics: {kinds[-1]}: {message}")


def _causes(failure: Any) -> tuple[list[str], str]:
    """The short class names from the outermost cause to the innermost, and what the innermost says."""
    error, kinds = failure.java_exception, []
    while error is not None:
        kinds.append(str(error.getClass().getSimpleName()))
        message = str(error.getMessage() or kinds[-1])
        error = error.getCause()
    return kinds, " ".join(message.split()).rstrip(".")


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JJavaError

    return Py4JJavaError  # type: ignore[no-any-return]


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
