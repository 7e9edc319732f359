"""Apache Kafka: one broker that is its own controller (KRaft).

::

    FOLDER/server-1.properties, log4j2.properties    written at every start
    FOLDER/data/1/                                   the broker's log
    FOLDER/certificates/                             of a secured broker

It has a second listener that sends clients to a TCP proxy: faults between a client and the broker go there, and the
broker itself and its plain listener know nothing of them::

    with Kafka(folder) as kafka, kafka.proxy() as proxy:
        client(proxy.address)
        proxy.cut()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from tallystick.jvm import resolve, version_of
from tallystick.servers.base import Server
from tallystick.servers.certificates import Certificates
from tallystick.servers.jvm_archive import archive_options, ensure_archive
from tallystick.servers.kafka_format import format_data, format_with_tool, new_id
from tallystick.servers.kafka_java import kafka_java
from tallystick.servers.kafka_security import SECURED, scram_arguments, security_settings
from tallystick.servers.kafka_settings import ALONE, LOGGING, Listener, listener_settings, write_properties
from tallystick.servers.kafka_wire import serving_brokers
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program
from tallystick.servers.tcp_proxy import Proxied, TcpProxy

K = TypeVar("K", bound="Kafka")
PORTS_OF_A_NODE = 4 + len(SECURED)
ARCHIVE_TIMEOUT_S = 120.0


class Kafka(Server, Proxied):
    """Ready when it answers and lists itself among the brokers that serve.

    ``settings`` are broker properties beside or instead of ours; each start takes those of the object started.
    ``secured`` adds listeners with passwords, with TLS and with both, and ACLs: see `kafka_security`. Choose it when
    the folder is new: the passwords are part of the data.
    """

    name = "kafka"
    nodes: ClassVar[int] = 1
    node_settings: ClassVar[Mapping[str, str]] = ALONE
    node_heap_mb: ClassVar[int] = 384
    ports_needed = PORTS_OF_A_NODE

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        secured: bool = False,
        heap_mb: int | None = None,
        fast_start: bool = True,
        java_options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self.settings = dict(settings or {})
        self.secured = secured
        self.heap_mb = heap_mb or self.node_heap_mb
        self.fast_start = fast_start
        self.java_options = list(java_options)

    @property
    def version(self) -> str:
        return version_of("kafka", "kafka-clients")

    @property
    def address(self) -> str:
        """Of the plain listener. Whoever comes by it may do everything, also if the broker is secured."""
        return self._addresses(0)

    @property
    def proxied_address(self) -> str:
        """Of the proxies that `proxy` makes."""
        return self._addresses(3)

    @property
    def sasl_address(self) -> str:
        """SASL_PLAINTEXT, of a secured broker."""
        return self._addresses(4)

    @property
    def ssl_address(self) -> str:
        """SSL, of a secured broker. Clients show no certificate."""
        return self._addresses(5)

    @property
    def sasl_ssl_address(self) -> str:
        """SASL_SSL, of a secured broker."""
        return self._addresses(6)

    @property
    def ca_file(self) -> Path:
        """What a client must trust, for the listeners with TLS."""
        return self._certificates.ca_file

    def proxy(self, node: int = 1) -> TcpProxy:
        """A proxy before a broker, not yet open. One at a time: clients are told its port."""
        _, _, listener, port = self.node_ports(node)[:4]
        return TcpProxy(listener, port)

    def node_ports(self, node: int) -> list[int]:
        """Plain, controller, the listener behind the proxy, the proxy, SASL, SSL, and SASL with SSL."""
        return self.ports[PORTS_OF_A_NODE * (node - 1) : PORTS_OF_A_NODE * node]

    def start(self: K) -> K:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.fast_start:
            ensure_archive("kafka", resolve("kafka"), self._leave_archive)
        for node in self._node_ids():
            write_properties(self._properties(node), self._settings_of(node))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        return super().start()

    def prepare(self) -> None:
        if self.secured:
            self._certificates.make()
        cluster_id = new_id()
        for node in self._node_ids():
            self._format(node, cluster_id)

    def programs(self) -> list[Program]:
        return [self._broker(node) for node in self._node_ids()]

    def ready(self) -> bool:
        everyone = list(self._node_ids())
        return all(serving_brokers(self.node_ports(node)[0]) == everyone for node in everyone)

    def _node_ids(self) -> Iterator[int]:
        return iter(range(1, self.nodes + 1))

    def _addresses(self, listener: int) -> str:
        return ",".join(f"{LOOPBACK}:{self.node_ports(node)[listener]}" for node in self._node_ids())

    @property
    def _certificates(self) -> Certificates:
        return Certificates(self.folder / "certificates")

    def _properties(self, node: int) -> Path:
        return self.folder / f"server-{node}.properties"

    def _data_of(self, node: int) -> Path:
        return self.data / str(node)

    def _broker(self, node: int) -> Program:
        name = f"{self.name}-{node}" if self.nodes > 1 else self.name
        return self._java(name, "kafka.Kafka", str(self._properties(node)))

    def _java(self, name: str, main: str, *arguments: str) -> Program:
        options = archive_options("kafka", resolve("kafka")) if self.fast_start else []
        options += self.java_options
        logging = self.folder / "log4j2.properties"
        return kafka_java(name, main, *arguments, logging=logging, heap_mb=self.heap_mb, options=options)

    def _format(self, node: int, cluster_id: str) -> None:
        def run_tool() -> None:
            words = ["format", "--cluster-id", cluster_id, "--config", str(self._properties(node))]
            words += scram_arguments() if self.secured else []
            self.run_once(self._java("format", "kafka.tools.StorageTool", *words))

        if self.secured or self.settings:  # either may change what is written
            format_with_tool(self._data_of(node), run_tool)
        else:
            format_data(self._data_of(node), self.version, cluster_id, node, run_tool)

    def _settings_of(self, node: int) -> dict[str, str]:
        controllers = ",".join(f"{each}@{LOOPBACK}:{self.node_ports(each)[1]}" for each in self._node_ids())
        return {
            **self.node_settings,
            "node.id": str(node),
            "controller.quorum.voters": controllers,
            "log.dirs": str(self._data_of(node)),
            **listener_settings(self._listeners(node), self.node_ports(node)[1]),
            **(security_settings(self._certificates) if self.secured else {}),
            **self.settings,
        }

    def _listeners(self, node: int) -> list[Listener]:
        plain, _, proxied, proxy, *secured = self.node_ports(node)
        made = [Listener("PLAINTEXT", plain, plain), Listener("PROXIED", proxied, proxy)]
        if self.secured:
            made += [Listener(each, port, port, SECURED[each]) for each, port in zip(SECURED, secured, strict=True)]
        return made

    def _leave_archive(self, scratch: Path, options: list[str]) -> None:
        """A broker that is started and stopped for the archive alone; the JVM writes it as it ends."""
        broker = Kafka(scratch / "broker", fast_start=False, java_options=options)
        try:
            broker.start()
            broker.processes[0].stop(ARCHIVE_TIMEOUT_S)
        finally:
            broker.kill()
