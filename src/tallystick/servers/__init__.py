"""Real servers on loopback, for development and tests."""

from tallystick.servers.base import Server
from tallystick.servers.cassandra import Cassandra
from tallystick.servers.hdfs import Hdfs
from tallystick.servers.kafka import Kafka
from tallystick.servers.kafka_cluster import KafkaCluster
from tallystick.servers.kinesis import Kinesis
from tallystick.servers.opensearch import OpenSearch
from tallystick.servers.postgresql import PostgreSQL
from tallystick.servers.rabbitmq import RabbitMQ
from tallystick.servers.redis import Redis
from tallystick.servers.s3 import S3Server
from tallystick.servers.tcp_proxy import TcpProxy, Way

__all__ = [
    "Cassandra",
    "Hdfs",
    "Kafka",
    "KafkaCluster",
    "Kinesis",
    "OpenSearch",
    "PostgreSQL",
    "RabbitMQ",
    "Redis",
    "S3Server",
    "Server",
    "TcpProxy",
    "Way",
]
