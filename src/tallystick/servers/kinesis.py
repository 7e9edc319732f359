"""Kinesis: kinesalite, an implementation of its interface on node, with its data on disk."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping

from tallystick.servers.base import Server
from tallystick.servers.npm import PINNED, find_node, kinesalite
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program

# its own command listens on every interface
_MAIN = """\
const [package, port, path] = process.argv.slice(1);
const waits = { createStreamMs: 10, deleteStreamMs: 10, updateStreamMs: 10, shardLimit: 100 };
require(package)({ path, ...waits }).listen(Number(port), '127.0.0.1');
process.on('SIGTERM', () => process.exit(0));
"""


REGION = "us-east-1"
"""Clients insist on one."""


class Kinesis(Server):
    """Ready when it answers. Clients need an access key and a secret; any will do."""

    name = "kinesis"

    @property
    def version(self) -> str:
        pinned = json.loads((PINNED / "package.json").read_text())
        return str(pinned["dependencies"]["kinesalite"])

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[0]}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Any credentials will do, but there must be some."""
        return {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": REGION}

    def prepare(self) -> None:
        """It formats its folder by itself."""

    def programs(self) -> list[Program]:
        arguments = [str(kinesalite()), str(self.ports[0]), str(self.data)]
        return [Program(self.name, [str(find_node()), "-e", _MAIN, *arguments])]

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[0], timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):  # nobody listens yet
            return False
        finally:
            connection.close()
