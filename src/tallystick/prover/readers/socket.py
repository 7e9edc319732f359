"""Sockets: the prover listens, keeps whole slices in a file, and answers for each when it is synced."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.servers.ports import LOOPBACK
from tallystick.sinks.socket import MARK, Socket


class SocketReader(Reader):
    kind = "socket"
    proves = "as a receiver sees it that keeps what it is sent, which is at-least-once: a crash may repeat slices"

    @classmethod
    def redirect(cls, sink: Socket, name: str, place: Place) -> Socket:
        return replace(sink, host=LOOPBACK, port=place.port(name), tls=None)

    @classmethod
    def prepare(cls, sink: Socket, place: Place) -> None:
        _listening[sink.port] = _Listener(sink.port, _file(sink, place))

    @classmethod
    def conclude(cls, sink: Socket, place: Place) -> None:
        if sink.port in _listening:
            _listening.pop(sink.port).close()

    def read(self) -> Mapping[str, Sequence[Item]]:
        path = _file(self.sink, self.place)
        lines = path.read_text().splitlines() if path.exists() else []
        return {"lines": [Item(row_text(_row(line, self.sink.format))) for line in lines]}


def _file(sink: Socket, place: Place) -> Path:
    return place.own / "received-lines" / f"{sink.port}.txt"


def _row(line: str, format_name: str) -> Mapping[str, object]:
    row = json.loads(line) if format_name == "json" else {"line": line}
    return row if isinstance(row, dict) else {"line": line}


class _Listener:
    """One connection per slice; what breaks off before its end mark is not kept, and not answered."""

    def __init__(self, port: int, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = threading.Lock()

        def keep(rows: Sequence[str]) -> None:
            with lock, path.open("a") as file:
                file.write("".join(f"{row}\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                rows: list[str] = []
                for line in (raw.decode().rstrip("\n") for raw in self.rfile):
                    if line.startswith(f"{MARK}end "):
                        keep(rows)
                        self.wfile.write(f"{line}\n".encode())
                        return
                    if not line.startswith(f"{MARK}begin "):
                        rows.append(line)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A job that was killed while it sent: it will send the slice again."""

        self._server = Server((LOOPBACK, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_listening: dict[int, _Listener] = {}
"""Of this process, by port."""
