"""One question in Kafka's own protocol, so that asking "do you serve?" needs no client library.

Metadata, version 1, about no topics: the oldest shape that every broker since 0.10 answers, and the answer lists the
brokers that are registered and not fenced. A broker that answers but is not in its own list does not serve yet.
"""

from __future__ import annotations

import socket
import struct

from tallystick.servers.ports import LOOPBACK

_METADATA, _VERSION = 3, 1
_MAX_ANSWER_BYTES = 1 << 20


def serving_brokers(port: int, timeout_s: float = 2.0) -> list[int]:
    """The node ids of the brokers that the one on this port knows to serve; empty if it gives no answer."""
    client = b"tallystick"
    request = struct.pack(f">hhih{len(client)}si", _METADATA, _VERSION, 0, len(client), client, 0)
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 0 < size <= _MAX_ANSWER_BYTES:
                return []
            return _node_ids(_exactly(connection, size))
    except (OSError, EOFError, struct.error):  # nobody listens yet, it is half started, or it is not Kafka
        return []


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _node_ids(answer: bytes) -> list[int]:
    """From: correlation id, then an array of (node id, host, port, rack)."""
    _, count = struct.unpack_from(">ii", answer)
    at, found = 8, []
    for _ in range(count):
        (node_id,) = struct.unpack_from(">i", answer, at)
        at = _after_string(answer, at + 4) + 4
        at = _after_string(answer, at)
        found.append(node_id)
    return sorted(found)


def _after_string(answer: bytes, at: int) -> int:
    size: int = struct.unpack_from(">h", answer, at)[0]
    return at + 2 + max(size, 0)
