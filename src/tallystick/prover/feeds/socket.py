"""Sockets: the receiver listens on this machine, whatever the job declares, and the prover sends."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from tallystick.errors import SourceError
from tallystick.prover.feeds.received import ReceivedFeed, await_received
from tallystick.prover.place import Place
from tallystick.servers.ports import LOOPBACK
from tallystick.sources import Socket
from tallystick.sources.socket import address

DATAGRAM_BYTES_MAX = 65_507
DATAGRAMS_AT_ONCE = 20
"""Even of the largest no more than the system holds for a socket that nobody reads just then, by default."""


class SocketFeed(ReceivedFeed):
    kind = "socket"

    @classmethod
    def receiving(cls, source: Socket, name: str, place: Place) -> Socket:
        return replace(source, listen=f"{LOOPBACK}:{place.port(f'source {name}')}", connect=None)

    @classmethod
    def send(cls, source: Socket, values: list[bytes]) -> None:
        where = address(source.listen or "")
        if source.framing == "datagrams":
            _send_datagrams(where, source.folder, values)
            return
        with socket.create_connection(where, 10) as sender:
            for value in values:
                sender.sendall(_framed(value, source.framing))


def _send_datagrams(where: tuple[str, int], folder: Path, values: list[bytes]) -> None:
    """Some at a time, each group when the log has the one before: nobody holds back a sender of datagrams."""
    too_large = next((value for value in values if len(value) > DATAGRAM_BYTES_MAX), None)
    if too_large is not None:
        raise SourceError(
            f"a record of {len(too_large)} bytes does not fit into a datagram, which holds {DATAGRAM_BYTES_MAX}: let "
            "prove_input give smaller ones"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for first in range(0, len(values), DATAGRAMS_AT_ONCE):
            group = values[first : first + DATAGRAMS_AT_ONCE]
            for value in group:
                sender.sendto(value, where)
            await_received(folder, first + len(group))


def _framed(value: bytes, framing: str) -> bytes:
    if framing == "length":
        return len(value).to_bytes(4, "big") + value
    if b"\n" in value:
        raise SourceError("a record with a line break in it cannot be sent as a line: let prove_input give one without")
    return value + b"\n"
