"""Three real brokers: one is killed, another one takes over, and nothing that was acknowledged is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from kafka_clients import WAIT_S, consume, new_topic, produce, producer, send, topic_leader, transaction_state

from real_servers import started
from tallystick.errors import ConfigError
from tallystick.servers import KafkaCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with started(KafkaCluster(tmp_path_factory.mktemp("cluster"))) as server:
        yield server


def test_a_transaction_outlives_the_node_that_kept_it(cluster: KafkaCluster) -> None:
    topic = new_topic()
    made = producer(cluster.address, transactional_id=topic)
    made.init_transactions(WAIT_S)
    made.begin_transaction()
    send(made, topic, ["prepared"])
    state, kept = transaction_state(cluster.address, topic)
    assert state == "Ongoing"
    cluster.kill_node(kept)
    assert not cluster.running
    made.commit_transaction(WAIT_S)
    assert transaction_state(cluster.address, topic)[1] != kept, "another node has taken over"
    assert consume(cluster.address, topic) == ["prepared"]
    assert topic_leader(cluster.address, topic) not in (kept, -1)
    cluster.start_node(kept)
    until_ready(cluster)


def until_ready(cluster: KafkaCluster) -> None:
    deadline = time.monotonic() + WAIT_S
    while not cluster.ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_topics_have_three_copies(cluster: KafkaCluster) -> None:
    topic = new_topic()
    produce(cluster.address, topic, ["a"])
    partitions = AdminClient({"bootstrap.servers": cluster.address}).list_topics(topic, WAIT_S).topics[topic].partitions
    assert [sorted(each.replicas) for each in partitions.values()] == [[1, 2, 3]]
    assert len(cluster.address.split(",")) == 3


def test_a_node_that_is_stopped_hands_over(cluster: KafkaCluster) -> None:
    topic = new_topic()
    produce(cluster.address, topic, ["before"])
    led = topic_leader(cluster.address, topic)
    cluster.stop_node(led)
    produce(cluster.address, topic, ["after"])
    cluster.start_node(led)
    until_ready(cluster)
    assert consume(cluster.address, topic) == ["before", "after"]


def test_there_is_no_fourth_node(cluster: KafkaCluster) -> None:
    with pytest.raises(ConfigError, match="has the nodes 1 to 3, found 4"):
        cluster.kill_node(4)
