"""Real servers on loopback, for development and tests."""

from tallystick.servers.base import Server
from tallystick.servers.hdfs import Hdfs

__all__ = ["Hdfs", "Server"]
