"""One Spark session and one server of each kind for all tests: starting them costs more than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from real_servers import Elsewhere, elsewhere, started
from s3_objects import make_bucket
from tallystick.servers import Cassandra, Hdfs, Kafka, Kinesis, OpenSearch, PostgreSQL, RabbitMQ, Redis, S3Server
from tallystick.servers.s3 import ACCESS_KEY, SECRET_KEY
from tallystick.spark.session import session

# A busy machine is no defect: examples are bounded by their number, not by their time.
settings.register_profile("tallystick", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tallystick")

# Spark's processes have the environment that their JVM was started with: it must be set before.
os.environ.setdefault("AWS_ACCESS_KEY_ID", ACCESS_KEY)
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

LONGEST_FIRST = ("chaos", "cluster", "spark", "servers", "contract")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders of long tests first: when two processes share the files, neither is left with a long one at the end."""

    def place(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "2"}
    made = session("tallystick tests", "local[2]", conf, fast_start=True, jvm_parts=("spark-kafka", "spark-s3"))
    yield made
    made.stop()


@pytest.fixture(autouse=True, scope="module")
def _few_producers() -> Iterator[None]:
    """Where the tests of a module are the worker, the producers that it kept ready go with it."""
    yield
    pool = sys.modules.get("tallystick.sinks.kafka.pool")
    if pool is not None:
        pool.close_pools()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka | Elsewhere]:
    """One broker for the whole run; tests have topics of their own. Who stops or kills one starts one of his own."""
    found = elsewhere("kafka")
    if found is not None:
        yield found
        return
    # nobody kills this one, so that it need not notice soon: a disk that stands still for 3 s is no dead broker
    with started(Kafka(tmp_path_factory.mktemp("kafka"), settings={"broker.session.timeout.ms": "30000"})) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """One server for the whole run; tests have tables of their own. Who stops or kills one starts one of his own."""
    with started(PostgreSQL(tmp_path_factory.mktemp("postgresql"))) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """One for the whole run; tests have queues of their own. Who stops or kills one starts one of his own."""
    with started(RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs | Elsewhere]:
    """One HDFS for the whole run; tests have folders of their own. Who stops or kills one starts one of his own."""
    found = elsewhere("hdfs")
    if found is not None:
        yield found
        return
    with started(Hdfs(tmp_path_factory.mktemp("hdfs"))) as server:
        yield server


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cassandra | Elsewhere]:
    """One node for the whole run; tests have tables of their own."""
    found = elsewhere("cassandra")
    if found is not None:
        yield found
        return
    with started(Cassandra(tmp_path_factory.mktemp("cassandra"))) as server:
        yield server


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One server for the whole run; tests have keys of their own. Who stops or kills one starts one of his own."""
    with started(Redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch | Elsewhere]:
    """One node for the whole run; tests have indices of their own."""
    found = elsewhere("opensearch")
    if found is not None:
        yield found
        return
    with started(OpenSearch(tmp_path_factory.mktemp("opensearch"))) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for the whole run, and its credentials in the environment; tests have prefixes of their own."""
    with started(S3Server(tmp_path_factory.mktemp("s3"))) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            if name != "AWS_ENDPOINT_URL":
                patch.setenv(name, value)
        make_bucket(server)
        yield server


@pytest.fixture(scope="session")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinesis | Elsewhere]:
    """One server for the whole run; tests have streams of their own. Any credentials will do."""
    found = elsewhere("kinesis")
    if found is not None:
        yield found
        return
    with started(Kinesis(tmp_path_factory.mktemp("kinesis"))) as server:
        yield server
