"""The X stream: a server on this machine that speaks its protocol, and sends every post to whoever connects."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tallystick.prover.feeds.base import Rows
from tallystick.prover.feeds.received import ReceivedFeed
from tallystick.prover.place import Place
from tallystick.prover.rows import text_of
from tallystick.servers.ports import LOOPBACK
from tallystick.sources import XStream

TOKEN_FROM = "TALLYSTICK_PROVE_X_TOKEN"
ALIVE_S = 0.5


class XStreamFeed(ReceivedFeed):
    kind = "x-stream"

    @classmethod
    def receiving(cls, source: XStream, name: str, place: Place) -> XStream:
        url = f"http://{LOOPBACK}:{place.port(f'source {name}')}"
        return replace(source, url=url, token_from=TOKEN_FROM, backfill_minutes=0)

    @classmethod
    def values(cls, rows: Rows) -> list[bytes]:
        return [_post(rows, index) for index in range(len(rows.workload))]

    @classmethod
    @contextmanager
    def sending(cls, source: XStream, rows: Rows, place: Place) -> Iterator[None]:
        os.environ[TOKEN_FROM] = "any"
        server = _serving(int(source.url.rpartition(":")[2]), cls.values(rows))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            del os.environ[TOKEN_FROM]


def _post(rows: Rows, index: int) -> bytes:
    """As the API sends one. ``prove_input`` gives the whole of it, or its text."""
    record = rows.record(index)
    made = text_of(record) if rows.made is None else rows.made(record)
    post = made if isinstance(made, dict) else {"data": {"id": str(record.number + 1), "text": made}}
    return json.dumps(post).encode()


def _serving(port: int, posts: list[bytes]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            alive = threading.Event()
            try:
                for post in posts:
                    self._chunk(post + b"\r\n")
                while not alive.wait(ALIVE_S):
                    self._chunk(b"\r\n")
            except OSError:  # the receiver has all and has gone
                self.close_connection = True

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
            """Not on the terminal."""

    server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    server.daemon_threads = True
    return server
