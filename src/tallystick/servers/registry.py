"""The servers that can be asked for by name, and the folders in which they were started.

A server lives in ``CACHE/servers/NAME`` unless another folder was chosen; that folder is noted, so that it is found
again::

    FOLDER/server.json                 whose folder it is: nothing else is ever removed
    CACHE/servers/elsewhere/HASH.json  one for each chosen folder
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from tallystick.errors import ConfigError
from tallystick.jvm import cache_folder
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

KINDS: dict[str, type[Server]] = {
    kind.name: kind
    for kind in (
        Kafka,
        KafkaCluster,
        Hdfs,
        PostgreSQL,
        Redis,
        S3Server,
        Cassandra,
        OpenSearch,
        Kinesis,
        RabbitMQ,
    )
}
"""To add a server, name its class here. It is made from a folder alone."""

_MARKER = "server.json"


def server_named(name: str, folder: Path | None = None) -> Server:
    """The server of this name in this folder, running or not, or not there yet. `ConfigError` if it cannot be."""
    if name not in KINDS:
        raise ConfigError(f"there is no server {name!r}: needed one of {', '.join(KINDS)}")
    server = KINDS[name](folder if folder is not None else default_folder(name))
    owner = _owner(server.folder)
    if owner not in (None, name):
        raise ConfigError(f"{server.folder} belongs to the server {owner!r}, not to {name!r}: choose another folder")
    return server


def default_folder(name: str) -> Path:
    return cache_folder() / "servers" / name


def is_there(server: Server) -> bool:
    """Whether it was ever started in its folder."""
    return _owner(server.folder) == server.name


def claim(server: Server) -> None:
    """Mark its folder, and remember it. `ConfigError` if something else is in it. May be repeated."""
    folder = server.folder
    if not is_there(server):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is not an empty folder: choose another one for the server {server.name!r}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARKER).write_text(json.dumps({"server": server.name}) + "\n")
    if folder != default_folder(server.name).absolute():
        note = _note(folder)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"server": server.name, "folder": str(folder)}) + "\n")


def remove(server: Server) -> None:
    """Its folder and all of its data, if it is one that was claimed. It must not run."""
    if is_there(server):
        shutil.rmtree(server.folder)
    _note(server.folder).unlink(missing_ok=True)


def all_servers() -> list[Server]:
    """One of each kind in its own folder, there or not, and those that were started elsewhere and still are there."""
    found = [server_named(name) for name in KINDS]
    for note in sorted((cache_folder() / "servers" / "elsewhere").glob("*.json")):
        noted = json.loads(note.read_text())
        if noted["server"] in KINDS and _owner(Path(noted["folder"])) == noted["server"]:
            found.append(server_named(noted["server"], Path(noted["folder"])))
    return found


def _owner(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / _MARKER).read_text())["server"])
    except (OSError, ValueError, KeyError):  # not a server's folder
        return None


def _note(folder: Path) -> Path:
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return cache_folder() / "servers" / "elsewhere" / f"{digest}.json"
