"""A receiver for the socket sink: keeps the rows of whole slices, and answers for them."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MARK = "#tallystick "


class LineReceiver:
    """``slices`` has every whole slice that came, each with its end mark, as often as it came.

    ``unanswered`` is how many whole slices get no answer, as if it were lost.
    """

    def __init__(self) -> None:
        self.slices: list[tuple[str, list[str]]] = []
        self.broken_off = 0
        self.unanswered = 0
        receiver = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                rows: list[str] = []
                begun = False
                for line in (raw.decode().rstrip("\n") for raw in self.rfile):
                    if line.startswith(f"{MARK}begin "):
                        begun = True
                    elif line.startswith(f"{MARK}end "):
                        receiver.slices.append((line, rows))
                        if receiver.unanswered:
                            receiver.unanswered -= 1
                        else:
                            self.wfile.write(f"{line}\n".encode())
                        return
                    else:
                        rows.append(line)
                receiver.broken_off += begun

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])

    @contextmanager
    def listening(self) -> Iterator[LineReceiver]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    @property
    def rows(self) -> list[str]:
        """All rows of whole slices, repeated if they were."""
        return [row for _, rows in self.slices for row in rows]
