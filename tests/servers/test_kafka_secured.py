"""A broker with passwords, rights and TLS: it lets in whom it should, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka_clients import consume, new_topic, produce

from real_servers import started
from tallystick.servers import Kafka
from tallystick.servers.kafka_security import USERS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with started(Kafka(tmp_path_factory.mktemp("kafka"), secured=True)) as server:
        yield server


def login(name: str, mechanism: str = "SCRAM-SHA-256", protocol: str = "SASL_PLAINTEXT") -> dict[str, Any]:
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": USERS[name],
    }


def allow(broker: Kafka, name: str, operation: ACLOperation, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        what = ResourcePattern(ResourceType.TOPIC, topic)
        made = admin.create_acls([ACL(f"User:{name}", "*", operation, ACLPermissionType.ALLOW, what)])
        assert made["failed"] == []
    finally:
        admin.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_password_opens_it(broker: Kafka, mechanism: str) -> None:
    topic = new_topic()
    produce(broker.sasl_address, topic, ["a"], **login("admin", mechanism))
    assert consume(broker.sasl_address, topic, **login("admin", mechanism)) == ["a"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_wrong_password_does_not(broker: Kafka, mechanism: str) -> None:
    wrong = {**login("admin", mechanism), "sasl_password": "guessed"}
    with pytest.raises(KafkaException, match=r"_AUTHENTICATION|_MSG_TIMED_OUT"):
        produce(broker.sasl_address, new_topic(), ["a"], **wrong | {"message_timeout_ms": 1000})


def test_rights_are_what_acls_give(broker: Kafka) -> None:
    topic = new_topic()
    produce(broker.address, topic, ["by the administrator"])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(broker.sasl_address, topic, ["a"], **login("writer"))
    allow(broker, "writer", ACLOperation.WRITE, topic)
    produce(broker.sasl_address, topic, ["by the writer"], **login("writer"))
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        consume(broker.sasl_address, topic, **login("writer"))
    allow(broker, "reader", ACLOperation.READ, topic)
    assert consume(broker.sasl_address, topic, **login("reader")) == ["by the administrator", "by the writer"]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(broker.sasl_address, topic, ["a"], **login("reader"))


def test_tls_with_its_certificate_authority(broker: Kafka) -> None:
    topic = new_topic()
    trusting: dict[str, Any] = {"ssl_ca_location": str(broker.ca_file)}
    produce(broker.ssl_address, topic, ["a"], security_protocol="SSL", **trusting)
    admin = login("admin", protocol="SASL_SSL")
    assert consume(broker.sasl_ssl_address, topic, **admin, **trusting) == ["a"]


def test_tls_is_refused_by_a_client_that_does_not_trust_it(broker: Kafka) -> None:
    with pytest.raises(KafkaException, match=r"_SSL|_MSG_TIMED_OUT"):
        produce(broker.ssl_address, new_topic(), ["a"], security_protocol="SSL", message_timeout_ms=1000)


def test_passwords_outlive_a_restart(broker: Kafka) -> None:
    broker.restart()
    topic = new_topic()
    produce(broker.sasl_address, topic, ["a"], **login("admin"))
    assert consume(broker.address, topic) == ["a"]
