"""The proxy between a real client and a real echo server: every fault it promises, and nothing left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tallystick.servers import TcpProxy, Way
from tallystick.servers.ports import LOOPBACK, free_ports

WAIT_S = 5.0


@dataclass
class Echo:
    """Sends back what it gets, and notes it."""

    port: int
    got: list[bytes] = field(default_factory=list)

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(1 << 16):
                    self.got.append(chunk)
                    connection.sendall(chunk)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        made = Echo(listening.getsockname()[1])
        serving = threading.Thread(target=made.serve, args=(listening,), daemon=True)
        serving.start()
        yield made
        listening.shutdown(socket.SHUT_RDWR)
    serving.join(WAIT_S)


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    before = threading.active_count()
    with TcpProxy(echo.port) as made:
        yield made
    assert made.connections == 0
    until(lambda: threading.active_count() <= before, "the threads of the proxy and of the echo to end")


def connect(proxy: TcpProxy) -> socket.socket:
    made = socket.create_connection((LOOPBACK, proxy.port), WAIT_S)
    made.settimeout(WAIT_S)
    return made


def ask(client: socket.socket, said: bytes = b"tally") -> bytes:
    client.sendall(said)
    answer = b""
    while len(answer) < len(said):
        more = client.recv(len(said) - len(answer))
        if not more:
            break
        answer += more
    return answer


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s in vain for {what}"
        time.sleep(0.01)


def test_bytes_go_both_ways(proxy: TcpProxy) -> None:
    big = bytes(range(256)) * 20_000
    with connect(proxy) as one, connect(proxy) as other:
        assert ask(one) == b"tally"
        until(lambda: proxy.connections == 2, "both to be accepted")
        received = bytearray()
        reading = threading.Thread(target=lambda: received.extend(read_exactly(other, len(big))))
        reading.start()
        other.sendall(big)
        reading.join(WAIT_S)
        assert bytes(received) == big
    until(lambda: proxy.connections == 0, "the proxy to see that the clients left")


def read_exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += client.recv(1 << 16)
    return found


def test_a_peer_that_has_said_all_still_hears_the_answer(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert read_exactly(client, 10) == b"last words"
        assert client.recv(10) == b""


def test_cut_drops_connections_and_refuses_new_ones_until_healed(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        assert ask(client) == b"tally"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as client:
        assert ask(client) == b"tally"


def test_slow_delays_each_way_and_keeps_the_connection(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client)
        proxy.slow(0.15)
        began_s = time.monotonic()
        assert ask(client) == b"tally"
        assert 0.3 <= time.monotonic() - began_s < WAIT_S
        proxy.heal()
        began_s = time.monotonic()
        assert ask(client) == b"tally"
        assert time.monotonic() - began_s < 0.15


def test_an_answer_is_lost_though_the_request_got_through(proxy: TcpProxy, echo: Echo) -> None:
    proxy.hold(Way.TO_CLIENT)
    with connect(proxy) as client:
        client.sendall(b"commit")
        until(lambda: echo.got == [b"commit"], "the request to get through")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.heal()
        with pytest.raises(ConnectionResetError):  # the answer is lost for good, and so is the connection
            client.recv(1)


def test_a_held_request_never_arrives(proxy: TcpProxy, echo: Echo) -> None:
    with connect(proxy) as untouched, connect(proxy) as client:
        assert ask(untouched, b"before") == b"before"
        proxy.hold()
        client.sendall(b"lost")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.heal()
        assert ask(untouched, b"after") == b"after", "a connection that lost nothing lives on"
    assert echo.got == [b"before", b"after"]


def test_nobody_behind_it_is_a_reset(proxy: TcpProxy) -> None:
    with TcpProxy(free_ports(1)[0]) as lonely:
        with pytest.raises(ConnectionResetError), connect(lonely) as client:
            client.recv(1)
        assert lonely.connections == 0


def test_close_is_quick_though_the_peers_do_nothing(echo: Echo) -> None:
    port = free_ports(1)[0]
    before = threading.active_count()
    with TcpProxy(echo.port, port) as proxy:
        assert proxy.port == port
        assert proxy.address == f"{LOOPBACK}:{port}"
        clients = [connect(proxy) for _ in range(20)]
        for client in clients:
            ask(client)
        # its answers fill all buffers, because nobody reads them
        clients[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[0].sendall(bytes(64 << 20))
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 2
    for client in clients:
        client.close()
    until(lambda: threading.active_count() <= before, "all threads to end")
    with TcpProxy(echo.port, port) as again, connect(again) as client:
        assert ask(client) == b"tally"
