"""OpenSearch: one node that is the whole cluster, started by the product's own main class. A JRE is enough.

::

    FOLDER/config/opensearch.yml, log4j2.properties    written at every start
    FOLDER/modules/transport-netty4/                   its HTTP server: the product loads it from a folder of its own
    FOLDER/data/                                       indices and cluster state

The product comes as a distribution that is put together from the same jars. What it adds to them, a description of
the module and the rights that it has, is written here.
"""

from __future__ import annotations

import http.client
import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

from tallystick.jvm import find_java, resolve, version_of
from tallystick.servers.base import Server
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program

O = TypeVar("O", bound="OpenSearch")  # noqa: E741 - as with the other servers, its first letter

STOP_TIMEOUT_S = 2.0

_MODULE = "transport-netty4"
_RIGHTS = "grant {\n  permission java.security.AllPermission;\n};\n"
_LOGGING = """\
status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


class OpenSearch(Server):
    """Ready when the cluster is not red: every index that it had can be read and written."""

    name = "opensearch"
    ports_needed = 2

    def __init__(self, folder: Path, *, heap_mb: int = 384) -> None:
        super().__init__(folder)
        self.heap_mb = heap_mb

    @property
    def version(self) -> str:
        return version_of("opensearch-transport", "transport-netty4-client")

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[0]}"

    def start(self: O) -> O:
        config = self.folder / "config"
        config.mkdir(parents=True, exist_ok=True)
        # YAML holds JSON, and JSON needs no rules about indents
        (config / "opensearch.yml").write_text(json.dumps(self._settings(), indent=1))
        (config / "log4j2.properties").write_text(_LOGGING)
        self._write_module()
        return super().start()

    def prepare(self) -> None:
        """It formats its folder by itself."""

    def programs(self) -> list[Program]:
        command = [str(find_java()), f"-Xms{self.heap_mb}m", f"-Xmx{self.heap_mb}m"]
        command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.security.manager=allow"]
        command += [f"-Dopensearch.path.home={self.folder}", f"-Dopensearch.path.conf={self.folder}/config"]
        # without its native library the node does not ask whether it runs as root, as it does in containers
        command += ["-Dopensearch.distribution.type=tar", "-Djna.nosys=true", "-Djna.nounpack=true"]
        classpath = ":".join(map(str, resolve("opensearch")))
        return [Program(self.name, [*command, "-cp", classpath, "org.opensearch.bootstrap.OpenSearch"])]

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[0], timeout=5)
        try:
            connection.request("GET", "/_cluster/health")
            return json.loads(connection.getresponse().read()).get("status") in ("green", "yellow")
        except (OSError, http.client.HTTPException, ValueError):  # nobody listens yet, or it is half started
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """Its transport waits half a minute before it closes. What was acknowledged is on disk: killed sooner."""
        for process in self.processes:
            process.stop(STOP_TIMEOUT_S)

    def _write_module(self) -> None:
        module = self.folder / "modules" / _MODULE
        shutil.rmtree(module, ignore_errors=True)
        module.mkdir(parents=True)
        (self.folder / "plugins").mkdir(exist_ok=True)
        for jar in resolve("opensearch-transport"):
            shutil.copy(jar, module)
        description = {
            "name": _MODULE,
            "description": "HTTP and transport",
            "version": self.version,
            "opensearch.version": self.version,
            "java.version": "11",
            "classname": "org.opensearch.transport.Netty4Plugin",
        }
        lines = "".join(f"{name}={value}\n" for name, value in description.items())
        (module / "plugin-descriptor.properties").write_text(lines)
        (module / "plugin-security.policy").write_text(_RIGHTS)

    def _settings(self) -> dict[str, Any]:
        web, transport = self.ports
        return {
            "cluster.name": "tallystick",
            "node.name": "node",
            "network.host": LOOPBACK,
            "http.port": web,
            "transport.port": transport,
            "discovery.type": "single-node",
            "path.data": str(self.data),
            "path.logs": str(self.folder / "logs"),
            # a few small indices must fit on a disk that is nearly full
            "cluster.routing.allocation.disk.threshold_enabled": False,
            "node.processors": 2,
        }
