"""Apache Kafka with three brokers, each also a controller: one may be killed, and clients find the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tallystick.errors import ConfigError, SetupError
from tallystick.servers.kafka import Kafka
from tallystick.servers.kafka_settings import ONE_OF_THREE
from tallystick.servers.kafka_wire import serving_brokers
from tallystick.servers.process import ServerProcess


class KafkaCluster(Kafka):
    """Ready when each of the three lists all three. Topics have three copies, and two must be written to.

    Nodes are numbered 1, 2, 3, as in Kafka's own answers. ``address`` lists all of them.
    """

    name = "kafka-cluster"
    nodes = 3
    node_settings = ONE_OF_THREE
    node_heap_mb = 256
    ports_needed = nodes * Kafka.ports_needed

    def node(self, number: int) -> ServerProcess:
        if not 1 <= number <= self.nodes:
            raise ConfigError(f"{self.name} has the nodes 1 to {self.nodes}, found {number}")
        return self.processes[number - 1]

    def kill_node(self, number: int) -> None:
        """As a crash would. The others go on when its session has ended, after about 3 s."""
        self.node(number).kill()

    def stop_node(self, number: int) -> None:
        """As an administrator would: it hands over what it leads, and then ends."""
        self.node(number).stop()

    def start_node(self, number: int) -> None:
        """Start it again on its data, and wait until it serves; the other nodes may be down or not."""
        process = self.node(number)
        process.start()
        deadline = time.monotonic() + self.ready_timeout_s
        while number not in serving_brokers(self.node_ports(number)[0]):
            if not process.running:
                raise self._failed(process, "ended while starting")
            if time.monotonic() > deadline:
                process.kill()
                raise SetupError(f"node {number} of {self.name} is not ready after {self.ready_timeout_s:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        """All at once: one after the other, the last would wait in vain for somebody to hand over to."""
        with ThreadPoolExecutor(self.nodes) as pool:
            list(pool.map(lambda process: process.stop(), self.processes))
