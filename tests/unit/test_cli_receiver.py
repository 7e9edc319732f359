"""``tallystick receiver``: what is said about a log, its dead letters, and a receiver that is run apart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rabbit_queues import wait_for
from tallystick.cli import main
from tallystick.errors import ConfigError
from tallystick.receiver import LogReader, ReceiverLog, Record
from tallystick.receiver.status import is_received, read_status
from tallystick.servers.ports import LOOPBACK, free_ports
from tallystick.sources import Socket

JOB = """
import tallystick as ts

job = ts.Job(
    "clicks",
    source=ts.sources.Socket({log!r}, listen="{address}", receiver=ts.sources.ReceiverSettings(run="apart")),
    sink=ts.sinks.Files({out!r}),
    checkpoint={checkpoint!r},
)
other = ts.Job("other", source=ts.sources.Collection([{{"id": 1}}]), sink=ts.sinks.Files({out!r}), checkpoint="x")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with ReceiverLog(tmp_path / "log") as made:
        made.append([Record(b"one"), Record(b"two")])
    with ReceiverLog(tmp_path / "log" / "dead-letters") as dead:
        dead.append([Record(b"\xff", attributes={"reason": "it is no utf-8", "sender": "me"})])
    LogReader(tmp_path / "log").settle(1)
    return tmp_path / "log"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["receiver", *words])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    return said.out


def test_the_status_of_a_log_that_nobody_writes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(asked(capsys, "status", str(log), "--json"))
    assert (found["durable"], found["settled"], found["dead_letters"], found["alive"]) == (2, 1, 1, False)
    assert "a lag of 1" in asked(capsys, "status", str(log))


def test_dead_letters_are_shown_with_their_reason(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [found] = json.loads(asked(capsys, "dead-letters", str(log), "--json"))
    assert (found["reason"], found["value"], found["attributes"]) == ("it is no utf-8", "\\xff", {"sender": "me"})
    assert "it is no utf-8" in asked(capsys, "dead-letters", str(log))


def test_dead_letters_are_noticed_until_a_person_has_settled_them(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Socket(log, listen="127.0.0.1:7000")
    assert source.lag(None, list).notice == f"1 dead letter: tallystick receiver dead-letters {log}"
    assert "1 dead letters in" in asked(capsys, "dead-letters", str(log), "--settle")
    assert source.lag(None, list).notice is None
    assert json.loads(asked(capsys, "status", str(log), "--json"))["dead_letters_settled"] == 1
    (log / "status.json").write_text(json.dumps({"state": "full", "full_of": "dead letters"}))
    notice = source.lag(None, list).notice
    assert notice == f"its log is full (dead letters), nothing is received: tallystick receiver status {log}"


def test_a_folder_that_is_no_log_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["receiver", "status", str(tmp_path)])
    assert ended.value.code == 1
    assert "is no receiver log" in capsys.readouterr().err


def test_a_receiver_run_apart_receives_until_it_is_told_to_stop(tmp_path: Path) -> None:
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    file = tmp_path / "jobs.py"
    paths = {"log": str(tmp_path / "log"), "out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "ck")}
    file.write_text(JOB.format(address=address, **paths))
    process = subprocess.Popen([sys.executable, "-m", "tallystick", "receiver", "run", f"{file}:job"])
    try:
        wait_for("the receiver", lambda: read_status(tmp_path / "log").get("state") == "receiving")
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"hello\n")
        wait_for("the record", lambda: LogReader(tmp_path / "log").durable == 1)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert not is_received(tmp_path / "log")


def test_a_job_without_a_receiver_is_told(tmp_path: Path) -> None:
    from tallystick.cli.receiver import _source_of
    from tallystick.spark.jobfile import load_job

    file = tmp_path / "jobs.py"
    paths = {"log": str(tmp_path / "log"), "out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "ck")}
    file.write_text(JOB.format(address="127.0.0.1:9", **paths))
    with pytest.raises(ConfigError, match="job other has no source with a receiver"):
        _source_of(load_job(f"{file}:other"), None)
    with pytest.raises(ConfigError, match="no source called 'nothing'"):
        _source_of(load_job(f"{file}:job"), "nothing")
