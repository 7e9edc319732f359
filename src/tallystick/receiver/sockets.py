"""Sockets: many senders on one listening socket, one server that is connected to, or datagrams. One thread.

Senders get no answer: what they sent is safe when it is in the log, and they cannot know. TCP makes them wait while
nothing is received; datagrams that come too fast are dropped by the system, which counts them.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tallystick.errors import SourceError
from tallystick.receiver.format import Record
from tallystick.receiver.framing import FRAMINGS, Framing
from tallystick.receiver.inlet import Inlet, Received
from tallystick.records import Json

log = logging.getLogger("tallystick.receiver")

CHUNK_BYTES = 1 << 18
GATHERED_BYTES = 4 << 20
DATAGRAM_BYTES_MAX = 1 << 16
SYSTEM_BUFFER_BYTES = 4 << 20
ACCEPT_AGAIN_S = 0.05
RECONNECT_FIRST_S = 0.1
RECONNECT_LONGEST_S = 10.0


class SocketInlet(Inlet):
    """``listen`` or ``connect`` is ``(host, port)``; ``framing`` is one of `framing.FRAMINGS`."""

    kind = "socket"

    def __init__(
        self,
        framing: str,
        listen: Sequence[Json] | None,
        connect: Sequence[Json] | None,
        encoding: str | None,
        max_record_bytes: int,
    ) -> None:
        self._framing = framing
        self._listen = (str(listen[0]), int(listen[1])) if listen is not None else None
        self._connect = (str(connect[0]), int(connect[1])) if connect is not None else None
        self._encoding = encoding
        self._max_bytes = max_record_bytes
        self._selector = selectors.DefaultSelector()
        self._listening: socket.socket | None = None
        self._links: dict[socket.socket, Framing] = {}
        self._no_room = False
        self._retry_s = RECONNECT_FIRST_S
        self._retry_at_s = 0.0
        self._counts = {"connections": 0, "connections_lost": 0, "connects_failed": 0, "dropped_by_system": 0}

    def open(self, last: Record | None) -> None:
        if self._listen is None:
            return  # `receive` connects, again and again
        try:
            self._listening = self._bound(self._listen)
        except (OSError, OverflowError) as error:
            host, port = self._listen
            raise SourceError(f"{host}:{port} cannot be listened on: {error}. choose another address") from error
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)

    def receive(self, wait_s: float) -> Sequence[Received]:
        if self._connect is not None and not self._links and not self._reconnected(wait_s):
            return []
        made: list[Received] = []
        taken_bytes = 0
        self._no_room = False
        while taken_bytes < GATHERED_BYTES and not self._no_room:
            ready = self._selector.select(0.0 if made else wait_s)
            if not ready:
                break
            for key, _ in ready:
                found, read_bytes = self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
                made += found
                taken_bytes += max(1, read_bytes)
            if not made and taken_bytes:
                wait_s = min(wait_s, 0.01)  # somebody connected, or sent half a record
        return made

    def acknowledge(self) -> None:
        """Nobody waits for it."""

    def close(self) -> Sequence[Received]:
        left = [each for link in list(self._links) for each in self._drop(link, "the receiver was stopped")]
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
        self._selector.close()
        return left

    def counts(self) -> Mapping[str, int]:
        if self._listening is not None and self._framing == "datagrams":
            self._counts["dropped_by_system"] = dropped_datagrams(self._listening)
        return self._counts

    def facts(self) -> Mapping[str, Json]:
        if self._connect is not None:
            return {"address": f"{self._connect[0]}:{self._connect[1]}", "connected": bool(self._links)}
        if self._listening is None:
            return {}
        host, port = self._listening.getsockname()[:2]
        return {"address": f"{host}:{port}", "senders": len(self._links)}

    def _bound(self, address: tuple[str, int]) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        if self._framing == "datagrams":
            made = socket.socket(family, socket.SOCK_DGRAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SYSTEM_BUFFER_BYTES)
            made.bind(address)
            return made
        return socket.create_server(address, family=family, backlog=128)

    def _read(self, ready: socket.socket) -> tuple[list[Received], int]:
        if ready is not self._listening:
            return self._read_stream(ready)
        if self._framing == "datagrams":
            return self._read_datagrams(ready)
        self._accept(ready)
        return [], 0

    def _accept(self, ready: socket.socket) -> None:
        """A sender that is gone again is nobody; one that this process has no room for waits, and is counted."""
        try:
            link, peer = ready.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            if not self._counts["connects_failed"]:
                log.warning("a sender could not be accepted, tried again and again: %s. raise ulimit -n?", error)
            self._counts["connects_failed"] += 1
            self._no_room = True  # others are read, and what was read is kept, before it is tried again
            time.sleep(ACCEPT_AGAIN_S)
            return
        self._add(link, peer)

    def _read_stream(self, link: socket.socket) -> tuple[list[Received], int]:
        try:
            data = link.recv(CHUNK_BYTES)
        except BlockingIOError:
            return [], 0
        except OSError as error:
            return self._drop(link, f"the connection broke ({error.strerror})"), 0
        if not data:
            return self._drop(link, "the sender ended the connection"), 0
        made = self._links[link].feed(data)
        if self._links[link].lost_its_way:
            made += self._drop(link, "the receiver closed the connection")
        return made, len(data)

    def _read_datagrams(self, ready: socket.socket) -> tuple[list[Received], int]:
        made: list[Received] = []
        taken_bytes = 0
        with suppress(BlockingIOError):
            while taken_bytes < GATHERED_BYTES:
                data, peer = ready.recvfrom(DATAGRAM_BYTES_MAX)
                made += self._framed(peer).feed(data)
                taken_bytes += max(1, len(data))
        return made, taken_bytes

    def _framed(self, peer: Sequence[Json]) -> Framing:
        return FRAMINGS[self._framing](self._max_bytes, self._encoding, {"sender": f"{peer[0]}:{peer[1]}"})

    def _add(self, link: socket.socket, peer: Sequence[Json]) -> None:
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._links[link] = self._framed(peer)
        self._selector.register(link, selectors.EVENT_READ)
        self._counts["connections"] += 1

    def _drop(self, link: socket.socket, why: str) -> list[Received]:
        left = self._links.pop(link).end(why)
        self._selector.unregister(link)
        link.close()
        self._counts["connections_lost"] += bool(left) or self._connect is not None
        return left

    def _reconnected(self, wait_s: float) -> bool:
        """One try if it is time for one; pauses double up to ten seconds."""
        now = time.monotonic()
        if now < self._retry_at_s:
            time.sleep(min(wait_s, self._retry_at_s - now))
            return False
        try:
            link = socket.create_connection(self._connect or ("", 0), timeout=5.0)
        except OSError as error:
            if self._retry_s == RECONNECT_FIRST_S:
                log.warning("%s:%s cannot be reached, tried again and again: %s", *(self._connect or ("", 0)), error)
            self._counts["connects_failed"] += 1
            self._retry_s = min(2 * self._retry_s, RECONNECT_LONGEST_S)
            self._retry_at_s = now + self._retry_s
            return False
        self._retry_s = RECONNECT_FIRST_S
        self._retry_at_s = now + self._retry_s
        self._add(link, link.getpeername())
        return True


def dropped_datagrams(listening: socket.socket) -> int:
    """How many the system threw away because they came faster than they were read; 0 where it does not say."""
    inode = str(os.fstat(listening.fileno()).st_ino)
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        with suppress(OSError):  # not Linux
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] == inode:
                    return int(fields[12])
    return 0
