"""The socket inlet with real sockets: many senders, a server to connect to, datagrams, a killed receiver, bad input."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rabbit_queues import numbers_in, wait_for
from tallystick.errors import SourceError
from tallystick.receiver import LogReader, LogSettings
from tallystick.receiver.process import ReceiverSpec, ensure_received, stop_receiver, work_for
from tallystick.receiver.status import is_received, read_status
from tallystick.servers.ports import LOOPBACK, free_ports


def spec(folder: Path, **settings: Any) -> ReceiverSpec:
    inlet = {
        "kind": "socket",
        "framing": "lines",
        "listen": [LOOPBACK, free_ports(1)[0]],
        "connect": None,
        "encoding": "utf-8",
        "max_record_bytes": 1000,
        **{name: value for name, value in settings.items() if name not in ("log", "outlives_s")},
    }
    return ReceiverSpec(str(folder), inlet, settings.get("log") or LogSettings(), False, settings.get("outlives_s"))


@contextmanager
def receiving(made: ReceiverSpec) -> Iterator[Path]:
    folder = Path(made.folder)
    ensure_received(made, os.getpid())
    try:
        yield folder
    finally:
        stop_receiver(folder)


def dial(made: ReceiverSpec) -> socket.socket:
    return socket.create_connection(tuple(made.inlet["listen"]))


def dead_letters(folder: Path) -> list[tuple[bytes, str]]:
    reader = LogReader(folder / "dead-letters")
    return [(found.value, found.attributes["reason"]) for _, found in reader.records(0, reader.durable)]


def test_lines_of_many_senders_arrive_each_in_its_order(tmp_path: Path) -> None:
    made = spec(tmp_path)
    with receiving(made) as folder:
        links = [dial(made) for _ in range(5)]
        for number in range(200):
            links[number % 5].sendall(f"{number}\n".encode())
        for link in links:
            link.close()
        wait_for("200 records", lambda: LogReader(folder).durable == 200)
    found = numbers_in(tmp_path)
    assert sorted(found) == list(range(200))
    for sender in range(5):
        assert [number for number in found if number % 5 == sender] == list(range(sender, 200, 5))
    assert len({record.attributes["sender"] for _, record in LogReader(tmp_path).records(0, 200)}) == 5


def test_bad_lines_and_half_a_line_are_dead_letters_and_the_rest_is_not(tmp_path: Path) -> None:
    made = spec(tmp_path)
    with receiving(made) as folder:
        with dial(made) as link:
            link.sendall(b"1\n\xff\xfe\n" + b"x" * 2000 + b"\n2\nhalf a li")
        wait_for("the dead letters", lambda: LogReader(folder / "dead-letters").durable == 3)
        wait_for("the count", lambda: read_status(folder)["counts"].get("refused") == 3)
    assert numbers_in(tmp_path) == [1, 2]
    reasons = [reason for _, reason in dead_letters(tmp_path)]
    assert "no utf-8" in reasons[0]
    assert "2000 bytes" in reasons[1] or "more than 1000" in reasons[1]
    assert "ended the connection in the middle of a record, after 9 bytes" in reasons[2]


def test_half_a_line_is_kept_when_the_receiver_is_stopped(tmp_path: Path) -> None:
    made = spec(tmp_path)
    with receiving(made) as folder, dial(made) as link:
        link.sendall(b"1\nhal")
        wait_for("the record", lambda: LogReader(folder).durable == 1)
        stop_receiver(folder)
    assert dead_letters(tmp_path) == [(b"hal", "the receiver was stopped in the middle of a record, after 3 bytes")]


def test_length_framed_records_may_hold_anything(tmp_path: Path) -> None:
    made = spec(tmp_path, framing="length", encoding=None)
    values = [b"", b"\n", bytes(range(256)), b"x" * 1000]
    with receiving(made) as folder:
        with dial(made) as link:
            link.sendall(b"".join(struct.pack(">I", len(value)) + value for value in values))
        wait_for("4 records", lambda: LogReader(folder).durable == 4)
    assert [record.value for _, record in LogReader(tmp_path).records(0, 4)] == values


def test_datagrams_are_records_and_what_the_system_drops_is_counted(tmp_path: Path) -> None:
    """The receiver is stopped for a moment, as by a slow disk: the system's buffer runs over, and says by how many."""
    made = spec(tmp_path, framing="datagrams", encoding=None)
    sent, size = 20_000, 1000
    with receiving(made) as folder, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"first", tuple(made.inlet["listen"]))
        wait_for("a record", lambda: LogReader(folder).durable == 1)
        pid = int(read_status(folder)["pid"])
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(sent):
                sender.sendto(b"x" * size, tuple(made.inlet["listen"]))
        finally:
            os.kill(pid, signal.SIGCONT)

        def accounted() -> bool:
            dropped = int(read_status(folder)["counts"].get("dropped_by_system", 0))
            return LogReader(folder).durable + dropped == sent + 1 and dropped > 0

        wait_for("every datagram, received or counted", accounted)


def test_a_server_is_connected_to_again_and_again(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        made = spec(tmp_path, listen=None, connect=list(server.getsockname()))
        with receiving(made) as folder:
            for number in range(3):
                link, _ = server.accept()
                link.sendall(f"{number}\n".encode())
                wait_for("the record", lambda expected=number + 1: LogReader(folder).durable == expected)
                link.close()
            wait_for("the count", lambda: read_status(folder)["counts"]["connections_lost"] >= 2)
    assert numbers_in(tmp_path) == [0, 1, 2]


def test_a_server_that_is_away_is_told_counted_and_waited_for(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with receiving(spec(tmp_path, listen=None, connect=[LOOPBACK, port])) as folder:
        wait_for("the count", lambda: read_status(folder)["counts"]["connects_failed"] >= 2)
        assert read_status(folder)["connected"] is False
        with socket.create_server((LOOPBACK, port)) as server:
            link, _ = server.accept()
            link.sendall(b"1\n")
            wait_for("the record", lambda: LogReader(folder).durable == 1)
            link.close()
    told = (tmp_path / "receiver.log").read_text()
    assert told.count(f"{LOOPBACK}:{port} cannot be reached") == 1, "told once for each time that it is away"


def test_a_bad_line_stops_the_receiver_if_asked_to(tmp_path: Path) -> None:
    made = spec(tmp_path)
    ensure_received(ReceiverSpec(made.folder, made.inlet, made.log, stop_at_bad=True), os.getpid())
    with dial(made) as link:
        link.sendall(b"1\n\xff\xfe\n2\n")
        wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert "a record was refused: it is no utf-8" in read_status(tmp_path)["error"]
    assert numbers_in(tmp_path) == [1, 2], "what came with it is kept: nobody sends it again"
    [(value, reason)] = dead_letters(tmp_path)
    assert value == b"\xff\xfe"
    assert "no utf-8" in reason


def test_a_killed_receiver_goes_on_where_it_was(tmp_path: Path) -> None:
    made = spec(tmp_path)
    for first in (0, 10, 20):
        ensure_received(made, os.getpid())
        with dial(made) as link:
            link.sendall(b"".join(f"{number}\n".encode() for number in range(first, first + 10)))
            wait_for("10 records more", lambda expected=first + 10: LogReader(tmp_path).durable == expected)
        os.kill(int(read_status(tmp_path)["pid"]), signal.SIGKILL)
        wait_for("its end", lambda: not is_received(tmp_path))
    assert numbers_in(tmp_path) == list(range(30))


def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server, pytest.raises(SourceError, match="cannot be listened on"):
        ensure_received(spec(tmp_path, listen=list(server.getsockname())), os.getpid())


def test_a_receiver_outlives_its_driver_for_a_while_and_serves_the_next(tmp_path: Path) -> None:
    made = spec(tmp_path, outlives_s=2.0)
    ensure_received(made, os.getpid())
    pid = read_status(tmp_path)["pid"]
    work_for(tmp_path, 2**22 - 1)  # a driver that does not live
    ensure_received(made, os.getpid())  # the next one
    assert read_status(tmp_path)["pid"] == pid, "a living receiver was replaced"
    work_for(tmp_path, 2**22 - 1)
    wait_for("its end", lambda: not is_received(tmp_path))
    assert read_status(tmp_path)["state"] == "stopped"


NO_ROOM = """
import os, resource, socket, sys
from tallystick.receiver.sockets import SocketInlet

address = ("127.0.0.1", int(sys.argv[1]))
inlet = SocketInlet("lines", address, None, "utf-8", 1000)
inlet.open(None)
sender = socket.socket()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
sender.connect(address)
sender.sendall(b"waits\\n")
assert inlet.receive(0.1) == []
assert inlet.counts()["connects_failed"] >= 1
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
[record] = next(filter(None, (inlet.receive(0.1) for _ in range(100))))
print(record.value.decode())
"""


def test_a_sender_that_there_is_no_room_for_waits_and_is_counted() -> None:
    """The process may not open one more file, so it is one of its own. Nobody is told, so nobody may be lost."""
    command = [sys.executable, "-c", NO_ROOM, str(free_ports(1)[0])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "waits\n"), ran.stderr
