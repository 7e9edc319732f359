"""Where rows come from: one file per system. `base.py` is the contract, `collection.py` the one to read first."""

from tallystick.sources.base import Source
from tallystick.sources.collection import Collection
from tallystick.sources.disorder import Disorder
from tallystick.sources.files import Files
from tallystick.sources.kafka import Kafka
from tallystick.sources.kinesis import Kinesis
from tallystick.sources.lag import Lag
from tallystick.sources.rabbitmq import RabbitMQ
from tallystick.sources.received import ReceiverSettings
from tallystick.sources.socket import Socket
from tallystick.sources.x_stream import XStream

__all__ = [
    "Collection",
    "Disorder",
    "Files",
    "Kafka",
    "Kinesis",
    "Lag",
    "RabbitMQ",
    "ReceiverSettings",
    "Socket",
    "Source",
    "XStream",
]
