"""Where rows go. `base.py` is the contract, `memory.py` the smallest sink that keeps it."""

from tallystick.sinks.base import (
    AppliedSink,
    IdempotentSink,
    JobContext,
    OpenTransaction,
    PlainSink,
    Sink,
    SliceContext,
    TransactionalSink,
    TransactionState,
)
from tallystick.sinks.cassandra import Cassandra
from tallystick.sinks.delta import Delta
from tallystick.sinks.files import Files
from tallystick.sinks.hdfs import HDFS
from tallystick.sinks.kafka import Kafka
from tallystick.sinks.kinesis import Kinesis
from tallystick.sinks.memory import Memory
from tallystick.sinks.opensearch import Elasticsearch, OpenSearch
from tallystick.sinks.postgresql import PostgreSQL
from tallystick.sinks.redis import Redis
from tallystick.sinks.refusals import Refusal
from tallystick.sinks.s3 import S3
from tallystick.sinks.socket import Socket
from tallystick.sinks.stdout import Stdout
from tallystick.sinks.tls import Tls

__all__ = [
    "HDFS",
    "S3",
    "AppliedSink",
    "Cassandra",
    "Delta",
    "Elasticsearch",
    "Files",
    "IdempotentSink",
    "JobContext",
    "Kafka",
    "Kinesis",
    "Memory",
    "OpenSearch",
    "OpenTransaction",
    "PlainSink",
    "PostgreSQL",
    "Redis",
    "Refusal",
    "Sink",
    "SliceContext",
    "Socket",
    "Stdout",
    "Tls",
    "TransactionState",
    "TransactionalSink",
]
