"""A TCP proxy on loopback, for faults between a client and a server: cut, slowed, or half open.

It runs in threads of the process that makes it, two for each connection and one that accepts; all of them end with
`close`, which takes a moment and no longer, whatever the peers do.
"""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from enum import Flag

from tallystick.servers.ports import LOOPBACK, free_ports

_CHUNK_BYTES = 1 << 16
_TICK_S = 0.05
_CLOSE_TIMEOUT_S = 5.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxied(ABC):
    """A server that can be reached through a proxy. A mixin."""

    @abstractmethod
    def proxy(self) -> TcpProxy:
        """A proxy before it, not yet open. One at a time."""

    @property
    @abstractmethod
    def proxied_address(self) -> str:
        """What a client connects to that comes through the proxy."""


class OnePort(Proxied):
    """A server with one port for clients, whose proxy may have any other: they need not be told by the server."""

    _proxy_port: int

    @property
    @abstractmethod
    def ports(self) -> list[int]:
        """The first one is for clients."""

    @abstractmethod
    def address_of(self, port: int) -> str:
        """The same server by another port, such as a proxy's."""

    def proxy(self) -> TcpProxy:
        made = TcpProxy(self.ports[0])
        self._proxy_port = made.port
        return made

    @property
    def proxied_address(self) -> str:
        """Of the last proxy that was made."""
        return self.address_of(self._proxy_port)


class Way(Flag):
    """Which way bytes go through a proxy."""

    TO_SERVER = 1
    TO_CLIENT = 2
    BOTH = 3


class TcpProxy:
    """Listens on ``port`` (any free one if none is given) and forwards to ``target_port``. A context manager.

    Its methods may be called from any thread, also while connections are busy. What they say holds for connections
    that are open and for those to come, until another method is called.
    """

    def __init__(self, target_port: int, port: int | None = None) -> None:
        self.target_port = target_port
        self.port = port if port is not None else free_ports(1)[0]
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listening: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self.latency_s = 0.0
        self.held = Way(0)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        with self._lock:
            return len(self._links)

    def open(self) -> TcpProxy:
        """Begin to listen. Harmless if it does."""
        if self._listening is None:
            listening = socket.create_server((LOOPBACK, self.port), backlog=128)
            listening.settimeout(_TICK_S)
            self._listening = listening
            self._acceptor = threading.Thread(target=self._accept, args=(listening,), name="proxy", daemon=True)
            self._acceptor.start()
        return self

    def close(self) -> None:
        """Drop everybody and end all threads. Harmless if it was closed."""
        self.cut()

    def cut(self) -> None:
        """Drop all connections, with a reset, and refuse new ones: the server is gone, as far as clients can see."""
        listening, acceptor = self._listening, self._acceptor
        self._listening = self._acceptor = None
        if listening is not None and acceptor is not None:
            acceptor.join(2 * _CLOSE_TIMEOUT_S)
            listening.close()
        self.drop()

    def drop(self) -> None:
        """Drop all connections, with a reset. New ones are welcome."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()
        for link in links:
            link.join()

    def slow(self, latency_s: float) -> None:
        """Every chunk waits this long, each way. Order is kept, nothing is lost."""
        self.latency_s = latency_s

    def hold(self, way: Way = Way.BOTH) -> None:
        """Accept, but forward nothing this way: the other side neither hears from us nor is told of an end.

        ``hold(Way.TO_CLIENT)`` loses answers whose requests got through. Bytes held are lost, so `heal` drops the
        connections that lost some.
        """
        self.held = way

    def heal(self) -> None:
        """As new: no latency, nothing held, listening. Connections that lost bytes are dropped, the others live on."""
        self.latency_s = 0.0
        self.held = Way(0)
        with self._lock:
            broken = [link for link in self._links if link.lost_bytes]
        for link in broken:
            link.close()
        for link in broken:
            link.join()
        self.open()

    def __enter__(self) -> TcpProxy:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _accept(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                client, _ = listening.accept()
            except OSError:  # nobody came for a tick, or has gone again
                continue
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        """A client whose server is not there is dropped, as the server's system would do."""
        try:
            server = socket.create_connection((LOOPBACK, self.target_port), _CLOSE_TIMEOUT_S)
        except OSError:
            _reset(client)
            return
        link = _Link(self, client, server)
        with self._lock:
            self._links.add(link)
        link.start()


class _Link:
    """A client and the server's end for it, with a thread for each way."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.lost_bytes = 0
        self._ends = (client, server)
        self._closing = threading.Event()
        self._ways_over = 0
        self._lock = threading.Lock()
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(_TICK_S)
        self._threads = [
            threading.Thread(target=self._pump, args=(client, server, Way.TO_SERVER), name="proxy-in", daemon=True),
            threading.Thread(target=self._pump, args=(server, client, Way.TO_CLIENT), name="proxy-out", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Asks the threads to end; `join` waits for it."""
        self._closing.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)

    def _pump(self, source: socket.socket, target: socket.socket, way: Way) -> None:
        try:
            while not self._closing.is_set():
                try:
                    chunk = source.recv(_CHUNK_BYTES)
                except TimeoutError:
                    continue
                if not self._forward(chunk, target, way):
                    break
        except OSError:  # a peer has gone without a good-bye: so does the other
            self._closing.set()
        finally:
            self._over()

    def _forward(self, chunk: bytes, target: socket.socket, way: Way) -> bool:
        """False after the end of this way: a peer that has said all may still be listening."""
        self._closing.wait(self.proxy.latency_s)
        if way in self.proxy.held:
            self.lost_bytes += max(1, len(chunk))  # an end that is not passed on is lost, too
            return bool(chunk)
        if not chunk:
            with suppress(OSError):  # gone already
                target.shutdown(socket.SHUT_WR)
            return False
        self._send(chunk, target)
        return True

    def _send(self, chunk: bytes, target: socket.socket) -> None:
        """All of it, though the peer may read slowly, unless the link is being closed."""
        rest = memoryview(chunk)
        while rest and not self._closing.is_set():
            with suppress(TimeoutError):
                rest = rest[target.send(rest) :]

    def _over(self) -> None:
        """The thread that ends last closes both ends; with a reset, unless both peers said good-bye."""
        with self._lock:
            self._ways_over += 1
            last = self._ways_over == len(self._threads)
        if not last:
            return
        for end in self._ends:
            if self._closing.is_set() or self.lost_bytes:
                _reset(end)
            else:
                end.close()
        self.proxy.forget(self)


def _reset(connection: socket.socket) -> None:
    """Close with RST: the peer gets an error now, and not when it next writes."""
    with suppress(OSError):  # the peer was faster
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    connection.close()
