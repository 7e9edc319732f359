"""One declaration of passwords and certificates opens a secured broker for all three clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from kafka_topics import WAIT_S, make_topic
from real_servers import started
from tallystick.errors import ConfigError
from tallystick.servers import Kafka as Broker
from tallystick.servers.kafka_security import USERS
from tallystick.sources import Kafka

pytestmark = pytest.mark.spark

CLIENTS_SHOW_CERTIFICATES = {
    "listener.name.ssl.ssl.client.auth": "required",
    "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=localhost$/admin/",
}
WAYS = ["password with TLS", "login module", "certificate in a file", "certificate as text"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    secured = Broker(tmp_path_factory.mktemp("kafka"), secured=True, settings=CLIENTS_SHOW_CERTIFICATES)
    with started(secured) as server:
        yield server


def declared(broker: Broker, way: str, folder: Path) -> tuple[str, dict[str, str]]:
    """An address of the broker, and the options for it."""
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.ca_file)}
    password = USERS["admin"]
    if way == "password with TLS":
        login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin", "sasl.password": password}
        return broker.sasl_ssl_address, {"security.protocol": "SASL_SSL", **login, **trust}
    if way == "login module":
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        login = {"sasl.jaas.config": f'{module} required username="admin" password="{password}";'}
        return broker.sasl_address, {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **login}
    # The server's own certificate serves as a client's: its key comes first in the file, as Java wants it.
    held = Path(shutil.copy(broker.ca_file.with_name("server.pem"), folder / "client.pem"))
    if way == "certificate in a file":
        show = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(held)}
        return broker.ssl_address, {"security.protocol": "SSL", **trust, **show}
    key, certificates = held.read_text().split("-----END PRIVATE KEY-----")
    key = f"{key}-----END PRIVATE KEY-----".replace("\n", " ")
    show = {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": certificates}
    inline = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": broker.ca_file.read_text()}
    return broker.ssl_address, {"security.protocol": "SSL", **inline, **show}


@pytest.mark.parametrize("way", WAYS)
def test_all_three_clients_come_in(broker: Broker, spark: SparkSession, tmp_path: Path, way: str) -> None:
    topic = make_topic(broker.address, partitions=1)
    address, options = declared(broker, way, tmp_path)
    source = Kafka(address, topic, options=options)

    producer = Producer(source.settings.librdkafka())
    producer.produce(topic, way)
    assert producer.flush(WAIT_S) == 0

    admin = KafkaAdminClient(**source.settings.kafka_python())
    try:
        assert topic in admin.list_topics()
    finally:
        admin.close()

    seen: list[bytes] = []
    rows = source.load(spark).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = rows.foreachBatch(lambda frame, _: seen.extend(row.value for row in frame.collect()))
    running = query.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(60)
    finally:
        running.stop()
    assert [bytes(value).decode() for value in seen] == [way]


def test_a_wrong_password_and_a_missing_right_are_told(broker: Broker, spark: SparkSession) -> None:
    topic = make_topic(broker.address)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "nobody"}
    with pytest.raises(ConfigError, match="do not accept each other: Authentication failed") as caught:
        Kafka(broker.sasl_address, topic, options={**login, "sasl.password": "guessed"}).load(spark)
    assert "guessed" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"may not read {topic} .*needed the rights Read and Describe"):
        Kafka(broker.sasl_address, topic, options={**login, "sasl.password": USERS["nobody"]}).load(spark)


def test_a_broker_that_is_not_trusted_is_told(broker: Broker, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="do not accept each other: unable to find valid certification path"):
        Kafka(broker.ssl_address, "pv", options={"security.protocol": "SSL"}).load(spark)


def test_a_client_without_a_certificate_stays_out(broker: Broker, tmp_path: Path) -> None:
    """So that the certificates above were really asked for."""
    address, options = declared(broker, "certificate in a file", tmp_path)
    bare = {name: value for name, value in options.items() if "keystore" not in name}
    producer = Producer({**Kafka(address, "pv", options=bare).settings.librdkafka(), "log_level": 0})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
