"""HDFS: one NameNode and one DataNode."""

from __future__ import annotations

import getpass
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tallystick.jvm import find_java, resolve, version_of
from tallystick.servers.base import Server
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program

_LOGGING = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


class Hdfs(Server):
    """Ready when the DataNode offers space and the NameNode has left safe mode: it can be read and written.

    ``settings`` are those of ``hdfs-site.xml``, beside or instead of ours; choose them when the folder is new.
    """

    name = "hdfs"
    ports_needed = 5

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.settings = dict(settings or {})

    @property
    def version(self) -> str:
        return version_of("hdfs", "hadoop-hdfs-client")

    @property
    def address(self) -> str:
        return f"hdfs://{LOOPBACK}:{self.ports[0]}"

    @property
    def web_address(self) -> str:
        """Of the NameNode's web server: its page, its metrics, and WebHDFS."""
        return f"http://{LOOPBACK}:{self.ports[1]}"

    def prepare(self) -> None:
        self._write_settings()
        self.run_once(self._java("format", "namenode.NameNode", "-format", "-force", "-nonInteractive"))

    def programs(self) -> list[Program]:
        return [self._java("namenode", "namenode.NameNode"), self._java("datanode", "datanode.DataNode")]

    def ready(self) -> bool:
        state = self._metrics("FSNamesystemState")
        # a DataNode that has registered takes no data before its first heartbeat tells how much space it has
        serves = state.get("NumLiveDataNodes") == 1 and state.get("CapacityRemaining", 0) > 0
        return serves and self._metrics("NameNodeInfo").get("Safemode") == ""

    def _metrics(self, bean: str) -> Mapping[str, Any]:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[1], timeout=5)
        try:
            connection.request("GET", f"/jmx?qry=Hadoop:service=NameNode,name={bean}")
            beans = json.loads(connection.getresponse().read())["beans"]
        except (OSError, http.client.HTTPException, ValueError):  # nobody listens yet, or it is half started
            return {}
        finally:
            connection.close()
        return beans[0] if beans else {}

    def _java(self, name: str, main: str, *arguments: str) -> Program:
        classpath = [self.folder / "conf", *resolve("hdfs")]
        command = [str(find_java()), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Djava.net.preferIPv4Stack=true", f"-Dhadoop.log.dir={self.folder}"]
        command += ["--add-opens", "java.base/java.lang=ALL-UNNAMED", "-cp", ":".join(map(str, classpath))]
        return Program(name, [*command, f"org.apache.hadoop.hdfs.server.{main}", *arguments])

    def _write_settings(self) -> None:
        conf = self.folder / "conf"
        # the web servers look for these folders on the classpath, and do not start without them
        for page in ("hdfs", "datanode", "static", "secondary"):
            (conf / "webapps" / page / "WEB-INF").mkdir(parents=True, exist_ok=True)
        for page in ("hdfs", "datanode"):
            (conf / "webapps" / page / "WEB-INF" / "web.xml").write_text("<web-app/>")
        (conf / "log4j.properties").write_text(_LOGGING)
        core = {
            "fs.defaultFS": self.address,
            "hadoop.tmp.dir": str(self.data / "tmp"),
            "hadoop.http.staticuser.user": getpass.getuser(),
        }
        _write_site(conf / "core-site.xml", core)
        _write_site(conf / "hdfs-site.xml", self._hdfs_settings())

    def _hdfs_settings(self) -> dict[str, str]:
        rpc, web, transfer, datanode_web, ipc = self.ports
        return {
            "dfs.replication": "1",
            "dfs.namenode.rpc-address": f"{LOOPBACK}:{rpc}",
            "dfs.namenode.http-address": f"{LOOPBACK}:{web}",
            "dfs.namenode.name.dir": f"file://{self.data}/namenode",
            "dfs.datanode.address": f"{LOOPBACK}:{transfer}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{datanode_web}",
            "dfs.datanode.ipc.address": f"{LOOPBACK}:{ipc}",
            "dfs.datanode.hostname": LOOPBACK,
            "dfs.datanode.data.dir": f"file://{self.data}/datanode",
            # one machine, nothing to wait for
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.blockreport.initialDelay": "0",
            "dfs.namenode.handler.count": "4",
            # a few small files must fit on a disk that is nearly full
            "dfs.datanode.du.reserved": "0",
            "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": "0",
            "dfs.namenode.resource.du.reserved": str(8 << 20),
            **self.settings,
        }


def _write_site(path: Path, settings: Mapping[str, str]) -> None:
    lines = [
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))
