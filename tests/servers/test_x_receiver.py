"""The X stream's inlet, against a server that drops, stalls, repeats, sends half a line, and refuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rabbit_queues import wait_for
from tallystick.errors import SourceError
from tallystick.receiver import LogReader
from tallystick.receiver.process import ReceiverSpec, ensure_received, stop_receiver
from tallystick.receiver.status import read_status
from tallystick.receiver.x_backoff import Backoff
from x_server import TOKEN, XServer

FAST = {
    "network_step_s": 0.05,
    "network_longest_s": 0.2,
    "http_first_s": 0.1,
    "http_longest_s": 0.4,
    "limited_first_s": 0.3,
    "limited_longest_s": 0.6,
}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_BEARER_TOKEN", TOKEN)


def spec(folder: Path, server: XServer, **settings: Any) -> ReceiverSpec:
    inlet = {
        "kind": "x-stream",
        "url": server.url,
        "token_from": "X_BEARER_TOKEN",
        "parameters": {"tweet.fields": "lang"},
        "backfill_minutes": 5,
        "silence_s": 1.0,
        "max_record_bytes": 2000,
        "patience_s": 30.0,
        "backoff": FAST,
        **settings,
    }
    return ReceiverSpec(str(folder), inlet)


@contextmanager
def receiving(made: ReceiverSpec) -> Iterator[Path]:
    folder = Path(made.folder)
    ensure_received(made, os.getpid())
    try:
        yield folder
    finally:
        stop_receiver(folder)


def ids_in(folder: Path) -> list[int]:
    reader = LogReader(folder)
    found = list(reader.records(0, reader.durable))
    assert all(json.loads(record.value)["data"]["id"] == record.id for _, record in found)
    return [int(record.id) for _, record in found]


def test_everything_that_can_go_wrong_and_still_every_post_once(tmp_path: Path) -> None:
    scripts: list[list[tuple[Any, ...]]] = [
        [("posts", range(10)), ("alive", 0.3), ("posts", range(10, 20))],  # ends in order
        [("posts", range(15, 30)), ("raw", b'{"data": {"id": "30", "te'), ("drop",)],  # repeats; half a line
        [("status", 503, {})],
        [("status", 429, {"x-rate-limit-reset": str(int(time.time()))})],
        [("posts", range(30, 40)), ("silent", 5.0)],  # stalls: longer than the silence that is allowed
        [("raw", b'{"errors": [{"title": "operational-disconnect"}]}\r\n')],
        [("posts", range(35, 50)), ("raw", b"nonsense\r\n"), ("raw", b'{"data": {}}\r\n'), ("alive", 30.0)],
    ]
    with XServer(scripts) as server, receiving(spec(tmp_path, server)) as folder:
        wait_for("50 posts", lambda: LogReader(folder).durable >= 50)
        wait_for("the dead letters", lambda: read_status(folder)["counts"].get("refused", 0) >= 3)
        counts = read_status(folder)["counts"]
    assert ids_in(tmp_path) == list(range(50))
    assert counts["repeated"] == 5 + 5
    assert counts["messages"] == 1
    assert counts["rate_limited"] == 1
    reader = LogReader(tmp_path / "dead-letters")
    reasons = [record.attributes["reason"] for _, record in reader.records(0, reader.durable)]
    assert reasons == [
        "the connection ended in the middle of a line, after 25 bytes",
        "it is no JSON",
        "it has no post id",
    ]
    assert "backfill_minutes" not in server.requests[0], "there is nothing to fill in before the first post"
    assert [request.get("backfill_minutes") for request in server.requests[1:]] == ["1"] * 6
    assert all(request["tweet.fields"] == "lang" for request in server.requests)
    gaps = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert gaps[3] >= FAST["limited_first_s"], "a limit was not waited for"


def test_a_restart_asks_for_what_was_missed_and_counts_what_cannot_come_back(tmp_path: Path) -> None:
    with XServer([[("posts", range(3)), ("alive", 30.0)]]) as server, receiving(spec(tmp_path, server)) as folder:
        wait_for("3 posts", lambda: LogReader(folder).durable == 3)
    with (
        XServer([[("posts", range(1, 6)), ("alive", 30.0)]]) as server,
        receiving(spec(tmp_path, server, backfill_minutes=0)) as folder,
    ):
        wait_for("6 posts", lambda: LogReader(folder).durable == 6)
        wait_for("the gap", lambda: read_status(folder)["counts"]["missed_s"] >= 1)
    assert ids_in(tmp_path) == list(range(6))


@pytest.mark.parametrize(
    ("token", "says"), [("wrong-token", "answered 401"), ("", "set X_BEARER_TOKEN in the environment")]
)
def test_a_wrong_token_is_told_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, says: str
) -> None:
    monkeypatch.setenv("X_BEARER_TOKEN", token)
    with XServer([]) as server:
        with suppress(SourceError):  # it may fail before it is seen to have started
            ensure_received(spec(tmp_path, server), os.getpid())
        wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert says in read_status(tmp_path)["error"]
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and b"wrong-token" in path.read_bytes()]
    assert shown == []


def test_a_server_that_stays_away_is_an_error(tmp_path: Path) -> None:
    with XServer([[("posts", range(3))]]) as server:
        made = spec(tmp_path, server, patience_s=1.0)
        ensure_received(made, os.getpid())
        wait_for("3 posts", lambda: LogReader(tmp_path).durable == 3)
    wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert "has not answered for 1 s" in read_status(tmp_path)["error"]


def test_back_off_is_what_the_documentation_asks_for() -> None:
    backoff = Backoff()
    assert [backoff.network() for _ in range(3)] == [0.25, 0.5, 0.75]
    assert max(backoff.network() for _ in range(100)) == 16.0
    assert [backoff.http(503, None) for _ in range(8)] == [5, 10, 20, 40, 80, 160, 320, 320]
    assert [backoff.http(429, None) for _ in range(3)] == [60, 120, 240]
    assert backoff.http(429, 2000.0) == 2000.0
    backoff.worked()
    assert (backoff.network(), backoff.http(500, None), backoff.http(429, None)) == (0.25, 5.0, 60.0)
