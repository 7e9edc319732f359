"""A server that speaks the protocol of the X filtered stream, and misbehaves on purpose.

Each connection takes the next of the given scripts: a list of steps, carried out in order.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tallystick.servers.ports import LOOPBACK

TOKEN = "a-secret-token"


def post(number: int) -> bytes:
    return json.dumps({"data": {"id": str(number), "text": f"post {number}"}, "matching_rules": [{"id": "1"}]}).encode()


class XServer:
    """Steps: ``("posts", numbers)``, ``("raw", bytes)``, ``("alive", seconds)``, ``("silent", seconds)``, ``("drop",)``
    and ``("status", code, headers)``. After its steps a connection is closed in order."""

    def __init__(self, scripts: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        self.scripts = list(scripts)
        self.requests: list[dict[str, str]] = []
        self.times: list[float] = []
        self.live: queue.Queue[int] = queue.Queue()
        """Posts that are sent to whoever is connected and alive."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Not on the terminal."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def __enter__(self) -> XServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        with self._lock:
            self.requests.append({name: values[0] for name, values in parse_qs(parts.query).items()})
            self.times.append(time.monotonic())
            script = self.scripts.pop(0) if self.scripts else [("alive", 600.0)]
        if handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(handler, 401, {}, b'{"title": "Unauthorized"}')
        elif parts.path != "/2/tweets/search/stream":
            self._refuse(handler, 404, {}, b"{}")
        elif script[0][0] == "status":
            self._refuse(handler, script[0][1], script[0][2], b'{"title": "go away"}')
        else:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            self._play(handler, script)

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _play(self, handler: BaseHTTPRequestHandler, script: Sequence[tuple[Any, ...]]) -> None:
        try:
            for name, *arguments in script:
                if name == "posts":
                    for number in arguments[0]:
                        _chunk(handler, post(number) + b"\r\n")
                elif name == "raw":
                    _chunk(handler, arguments[0])
                elif name == "alive":
                    for _ in range(int(arguments[0] / 0.1)):
                        _chunk(handler, b"\r\n")
                        while not self.live.empty():
                            _chunk(handler, post(self.live.get_nowait()) + b"\r\n")
                        if self._closing.wait(0.1):
                            return
                elif name == "silent":
                    time.sleep(arguments[0])
                elif name == "drop":
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            return  # the client has gone: it may
        finally:
            handler.close_connection = True


def _chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    handler.wfile.flush()
