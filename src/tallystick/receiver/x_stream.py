"""The filtered stream of the X API: one long HTTP answer, a JSON object per line, empty lines as signs of life.

1.  *Signs of life.* The server sends a line at least every 20 seconds, empty if there is nothing to say. After a longer
    silence the connection is dead, whatever TCP says.
2.  *Back-off*, as the API's documentation asks for: at once after a connection that worked; then, for network errors, a
    quarter of a second more each time, up to 16 s; for HTTP errors 5 s, doubled up to 320 s; for 429 one minute,
    doubled, and never before the time that the server names.
3.  *Backfill.* After a gap the server is asked for the minutes that were missed, as many as it keeps and the account
    may have. Posts come again then, and are known by their ids. A longer gap is a loss; it is counted, in seconds.

A thread reads the connection; the pump takes what it left in a bounded queue. So a slow disk makes the server wait, and
a server that has waited too long drops the connection.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

from tallystick.errors import SourceError
from tallystick.receiver.format import Record
from tallystick.receiver.framing import KEPT_OF_REFUSED_BYTES
from tallystick.receiver.inlet import Inlet, Received, Refused
from tallystick.receiver.x_backoff import Backoff
from tallystick.records import Json

log = logging.getLogger("tallystick.receiver")

QUEUED_LINES = 10_000
TAKEN_AT_ONCE = 5_000
READ_BYTES = 1 << 16


class XStreamInlet(Inlet):
    """``token_from`` names the variable of the environment that holds the bearer token."""

    kind = "x-stream"

    def __init__(
        self,
        url: str,
        token_from: str,
        parameters: Mapping[str, str],
        backfill_minutes: int,
        silence_s: float,
        max_record_bytes: int,
        patience_s: float,
        backoff: Mapping[str, float] | None = None,
    ) -> None:
        self._url = urlsplit(url)
        self._token_from = token_from
        self._parameters = dict(parameters)
        self._backfill_minutes = backfill_minutes
        self._silence_s = silence_s
        self._max_bytes = max_record_bytes
        self._patience_s = patience_s
        self._backoff = Backoff(**(backoff or {}))
        self._lines: queue.Queue[Received] = queue.Queue(QUEUED_LINES)
        self._stopping = threading.Event()
        self._failure: SourceError | None = None
        self._thread: threading.Thread | None = None
        self._last_sign_s: float | None = None
        self._connected = False
        self._came = False
        self._counts = dict.fromkeys(("connections_lost", "messages", "missed_s", "rate_limited"), 0)

    def open(self, last: Record | None) -> None:
        if not os.environ.get(self._token_from):
            raise SourceError(
                f"the X stream needs a bearer token: set {self._token_from} in the environment of the job"
            )
        if last is not None:
            self._last_sign_s = last.received_us / 1e6
        self._thread = threading.Thread(target=self._read_for_ever, name="x-stream", daemon=True)
        self._thread.start()

    def receive(self, wait_s: float) -> Sequence[Received]:
        made: list[Received] = []
        try:
            made.append(self._lines.get(timeout=wait_s))
            while len(made) < TAKEN_AT_ONCE:
                made.append(self._lines.get_nowait())
        except queue.Empty:
            if not made and self._failure is not None:
                raise self._failure from None
        return made

    def acknowledge(self) -> None:
        """Nobody waits for it."""

    def close(self) -> Sequence[Received]:
        self._stopping.set()
        left: list[Received] = []
        while not self._lines.empty():
            left.append(self._lines.get_nowait())
        return left

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def facts(self) -> Mapping[str, Json]:
        return {"address": self._url.netloc, "connected": self._connected}

    def _read_for_ever(self) -> None:
        away_since_s = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._read_connection()
                pause_s, why = self._backoff.network(), "the server ended the connection"
            except _RefusedError as refused:
                if refused.fatal:
                    self._failure = SourceError(str(refused))
                    return
                self._counts["rate_limited"] += refused.status == 429
                pause_s, why = self._backoff.http(refused.status, refused.reset_s), str(refused)
            except (OSError, http.client.HTTPException) as failure:
                pause_s, why = self._backoff.network(), f"{type(failure).__name__}: {failure}"
            self._counts["connections_lost"] += self._connected
            if self._came:  # it worked until now: the first try is at once
                away_since_s, pause_s = time.monotonic(), 0.0
            self._connected = self._came = False
            if time.monotonic() - away_since_s > self._patience_s:
                self._failure = SourceError(
                    f"the X stream at {self._url.netloc} has not answered for {self._patience_s:g} s: {why}. what was "
                    "received is in the log; start again later, or raise patience="
                )
                return
            log.warning("the X stream at %s: %s; again in %.2f s", self._url.netloc, why, pause_s)
            self._stopping.wait(pause_s)

    def _read_connection(self) -> None:
        """One connection, from its request to its end."""
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=self._silence_s)
        try:
            connection.request("GET", self._target(), headers={"Authorization": f"Bearer {self._token()}"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise _RefusedError(answer)
            self._connected = True
            self._count_gap()
            self._read_lines(answer)
        finally:
            connection.close()

    def _read_lines(self, answer: http.client.HTTPResponse) -> None:
        """Until the connection ends, however it ends: half a line is kept as a dead letter."""
        rest = b""
        try:
            while not self._stopping.is_set() and (data := answer.read1(READ_BYTES)):
                self._came = True
                self._backoff.worked()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line.removesuffix(b"\r"))
                self._last_sign_s = time.time()
                if len(rest) > self._max_bytes:
                    return
        finally:
            if rest.strip():
                self._put(self._refused(rest, f"the connection ended in the middle of a line, after {len(rest)} bytes"))

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return  # a sign of life
        try:
            value = json.loads(line)
            name = value["data"]["id"]
        except (ValueError, KeyError, TypeError):
            self._take_other(line)
            return
        if len(line) > self._max_bytes:
            self._put(self._refused(line, f"it has {len(line)} bytes, at most {self._max_bytes} are allowed"))
            return
        self._put(Record(line, str(name)))

    def _take_other(self, line: bytes) -> None:
        """What is no post: a message of the server about the stream, or nonsense."""
        try:
            value = json.loads(line)
        except ValueError:
            self._put(self._refused(line, "it is no JSON"))
            return
        if isinstance(value, dict) and "errors" in value and "data" not in value:
            self._counts["messages"] += 1
            log.warning("the X stream at %s says: %s", self._url.netloc, line.decode(errors="replace")[:500])
            return
        self._put(self._refused(line, "it has no post id"))

    def _refused(self, line: bytes, reason: str) -> Refused:
        return Refused(reason, Record(line[:KEPT_OF_REFUSED_BYTES]))

    def _put(self, received: Received) -> None:
        while not self._stopping.is_set():
            try:
                self._lines.put(received, timeout=1.0)
            except queue.Full:
                continue  # the log is full: nothing is taken from the server either
            return

    def _token(self) -> str:
        return os.environ[self._token_from].strip()

    def _target(self) -> str:
        parameters = dict(self._parameters)
        missed_s = self._missed_s()
        if missed_s is not None and self._backfill_minutes:
            parameters["backfill_minutes"] = str(min(self._backfill_minutes, max(1, math.ceil(missed_s / 60))))
        query = f"?{urlencode(parameters)}" if parameters else ""
        return f"{self._url.path.rstrip('/')}/2/tweets/search/stream{query}"

    def _missed_s(self) -> float | None:
        return None if self._last_sign_s is None else max(0.0, time.time() - self._last_sign_s)

    def _count_gap(self) -> None:
        """What backfill cannot bring back."""
        missed_s = self._missed_s()
        if missed_s is not None:
            self._counts["missed_s"] += max(0, math.ceil(missed_s - 60 * self._backfill_minutes))


class _RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        said = answer.read(2000).decode(errors="replace").strip()
        reset: Any = answer.headers.get("x-rate-limit-reset")
        self.reset_s = max(0.0, float(reset) - time.time()) if reset and reset.isdigit() else None
        super().__init__(f"the X stream answered {answer.status} {answer.reason}: {said[:300]}")

    @property
    def fatal(self) -> bool:
        """Wrong token, wrong parameters: no waiting mends that."""
        return 400 <= self.status < 500 and self.status not in (408, 420, 429)
