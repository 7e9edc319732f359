"""Apache Cassandra: one node that is the whole ring.

::

    FOLDER/conf/cassandra.yaml, logback.xml    written at every start
    FOLDER/data/                               tables, commit log and caches
    FOLDER/certificates/                       of a secured node
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, TypeVar

from tallystick.jvm import find_java, resolve, version_of
from tallystick.servers.base import Server
from tallystick.servers.cassandra_java import JAVA_OPTIONS
from tallystick.servers.certificates import Certificates
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program

C = TypeVar("C", bound="Cassandra")

USER, PASSWORD = "cassandra", "cassandra"
"""Of a secured node: what Cassandra itself begins with."""

_LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""
_OPTIONS_REQUEST = bytes([0x04, 0, 0, 0, 0x05, 0, 0, 0, 0])
_SUPPORTED = 0x06


class Cassandra(Server):
    """Ready when it answers the first question of a client.

    ``secured`` asks for a password (`USER`, `PASSWORD`) and for TLS. Choose it when the folder is new.
    """

    name = "cassandra"
    ports_needed = 3
    ready_timeout_s = 120.0

    def __init__(self, folder: Path, *, secured: bool = False, heap_mb: int = 512) -> None:
        super().__init__(folder)
        self.secured = secured
        self.heap_mb = heap_mb

    @property
    def version(self) -> str:
        return version_of("cassandra", "cassandra-all")

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.ports[0]}"

    @property
    def ca_file(self) -> Path:
        """What a client of a secured node must trust."""
        return self._certificates.ca_file

    def start(self: C) -> C:
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        if self.secured and not self.ca_file.exists():
            self._certificates.make()
        # YAML holds JSON, and JSON needs no rules about indents
        (conf / "cassandra.yaml").write_text(json.dumps(self._settings(), indent=1))
        (conf / "logback.xml").write_text(_LOGGING)
        return super().start()

    def prepare(self) -> None:
        """It formats its folder by itself."""

    def programs(self) -> list[Program]:
        conf, jars = self.folder / "conf", resolve("cassandra")
        meter = next(jar for jar in jars if jar.name.startswith("jamm-"))
        command = [str(find_java()), f"-Xms{self.heap_mb // 2}m", f"-Xmx{self.heap_mb}m", "-Xss512k"]
        command += ["-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *JAVA_OPTIONS]
        command += [f"-javaagent:{meter}", f"-Dcassandra.config=file://{conf}/cassandra.yaml"]
        command += [f"-Dcassandra.storagedir={self.data}", f"-Dcassandra.logdir={self.folder}"]
        command += [f"-Dlogback.configurationFile={conf}/logback.xml", "-Dcassandra-foreground=yes"]
        # one node has nobody to wait for
        command += ["-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=0"]
        command += ["-Dcassandra.superuser_setup_delay_ms=0"]
        classpath = ":".join(map(str, [conf, *jars]))
        return [Program(self.name, [*command, "-cp", classpath, "org.apache.cassandra.service.CassandraDaemon"])]

    def ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.ports[0]), timeout=5) as connection:
                if self.secured:  # the port opens last, and is never open for plain requests
                    return True
                connection.sendall(_OPTIONS_REQUEST)
                answer = connection.recv(9)
                return len(answer) == 9 and answer[4] == _SUPPORTED
        except OSError:  # nobody listens yet
            return False

    @property
    def _certificates(self) -> Certificates:
        return Certificates(self.folder / "certificates")

    def _settings(self) -> dict[str, Any]:
        cql, storage, ssl_storage = self.ports
        seeds = [{"seeds": f"{LOOPBACK}:{storage}"}]
        return {
            "cluster_name": "tallystick",
            "num_tokens": 1,
            "initial_token": "0",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "listen_address": LOOPBACK,
            "rpc_address": LOOPBACK,
            "native_transport_port": cql,
            "storage_port": storage,
            "ssl_storage_port": ssl_storage,
            "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}],
            # what is acknowledged is on disk: with its default, periodic, one node that crashes loses the last seconds
            "commitlog_sync": "batch",
            "commitlog_segment_size": "4MiB",
            "commitlog_total_space": "64MiB",
            "data_file_directories": [str(self.data / "tables")],
            "commitlog_directory": str(self.data / "commitlog"),
            "saved_caches_directory": str(self.data / "saved_caches"),
            "hints_directory": str(self.data / "hints"),
            "cdc_raw_directory": str(self.data / "cdc_raw"),
            "memtable_heap_space": "64MiB",
            "memtable_offheap_space": "64MiB",
            "file_cache_size": "32MiB",
            "key_cache_size": "4MiB",
            "concurrent_reads": 8,
            "concurrent_writes": 8,
            "concurrent_counter_writes": 4,
            "concurrent_compactors": 1,
            "auto_snapshot": False,
            "hinted_handoff_enabled": False,
            "storage_compatibility_mode": "NONE",
            **self._security_settings(),
        }

    def _security_settings(self) -> dict[str, Any]:
        if not self.secured:
            return {"authenticator": "AllowAllAuthenticator", "authorizer": "AllowAllAuthorizer"}
        stores = {"keystore": str(self._certificates.server_file), "truststore": str(self.ca_file)}
        factory = "org.apache.cassandra.security.PEMBasedSslContextFactory"
        return {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "client_encryption_options": {
                "enabled": True,
                "optional": False,
                "ssl_context_factory": {"class_name": factory},
                **stores,
            },
        }
