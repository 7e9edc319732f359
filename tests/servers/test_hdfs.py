"""A real HDFS: serves, survives a kill with its data, and leaves no process behind."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from real_servers import started
from tallystick.errors import SetupError
from tallystick.servers import Hdfs, Server
from tallystick.servers.process import Program, ServerProcess


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with started(Hdfs(tmp_path_factory.mktemp("hdfs"))) as server:
        yield server


def web(method: str, url: str, body: bytes = b"") -> tuple[int, bytes, str]:
    """One request of WebHDFS; redirects are the caller's to follow."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request(method, f"{parts.path}?{parts.query}", body)
    answer = connection.getresponse()
    result = answer.status, answer.read(), answer.headers.get("Location", "")
    connection.close()
    return result


def test_data_survives_a_kill(hdfs: Hdfs) -> None:
    user = "user.name=" + (os.environ.get("USER") or "root")
    status, said, datanode = web("PUT", f"{hdfs.web_address}/webhdfs/v1/kept?op=CREATE&{user}")
    assert status == 307, said
    assert web("PUT", datanode, b"kept")[0] == 201
    address, pids = hdfs.address, [process.pid for process in hdfs.processes]
    hdfs.kill()
    assert not any(alive(pid) for pid in pids if pid is not None)
    hdfs.start()
    assert hdfs.address == address
    status, _, datanode = web("GET", f"{hdfs.web_address}/webhdfs/v1/kept?op=OPEN&{user}")
    assert status == 307
    assert web("GET", datanode)[:2] == (200, b"kept")


def test_another_process_finds_it_by_its_folder(hdfs: Hdfs) -> None:
    found = Hdfs(hdfs.folder)
    assert found.running
    assert found.address == hdfs.address
    assert found.ready()
    with pytest.raises(SetupError, match=r"hdfs runs already in .*, as process"):
        found.start()
    assert hdfs.running


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Shell(Server):
    """A server made of one line of shell, to see how starting can fail."""

    name = "shell"
    ready_timeout_s = 0.5
    line = "sleep 60"

    @property
    def address(self) -> str:
        return str(self.ports[0])

    def prepare(self) -> None:
        (self.data / "formatted").touch(exist_ok=False)

    def programs(self) -> Sequence[Program]:
        return [Program("shell", ["sh", "-c", self.line], {"GREETING": "hello"})]

    def ready(self) -> bool:
        return (self.data / "ready").exists()


class Dies(Shell):
    line = "echo $GREETING; echo no such disk >&2; exit 3"


class Serves(Shell):
    ready_timeout_s = 30.0
    line = "trap '' TERM; touch data/ready; while true; do sleep 0.1; done"


class HasChildren(Shell):
    """Ends at once when asked to, and leaves a child behind."""

    ready_timeout_s = 30.0
    line = "sleep 61 & echo $! > data/child; mv data/child data/ready; wait"


def test_a_server_that_dies_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"(?s)shell could not start: shell ended.*shell.log:\nhello\nno such disk"):
        Dies(tmp_path / "s").start()


def test_a_server_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    server = Shell(tmp_path / "s")
    with pytest.raises(SetupError, match=r"shell is not ready after 0\.5 s"):
        server.start()
    assert not server.running
    assert not list(server.folder.glob("*.pid"))


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = ServerProcess(Program("none", ["/no/such/program"]), tmp_path)
    with pytest.raises(SetupError, match="/no/such/program cannot be run: No such file"):
        process.start()


def test_a_server_deaf_to_sigterm_ends_and_starts_again_on_its_data(tmp_path: Path) -> None:
    with Serves(tmp_path / "s") as server:
        (process,) = server.processes
        first = process.pid
        assert first is not None
        process.stop(timeout_s=0.2)
        assert not server.running
        server.restart()
        assert process.pid not in (None, first)
        server.kill()
        server.stop()
    assert not server.running


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_no_child_of_a_server_is_left(tmp_path: Path, end: str) -> None:
    server = HasChildren(tmp_path / "s").start()
    child = int((server.data / "ready").read_text())
    assert alive(child)
    getattr(server, end)()
    deadline = time.monotonic() + 30
    while alive(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.02)


def test_a_reused_process_number_is_not_taken_for_the_server(tmp_path: Path) -> None:
    server = Shell(tmp_path / "s")
    server.folder.mkdir()
    (server.folder / "shell.pid").write_text(f'{{"pid": {os.getpid()}, "born": "1"}}')
    assert not server.running
    server.stop()
    server.kill()
