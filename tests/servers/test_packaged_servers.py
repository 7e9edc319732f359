"""PostgreSQL and Redis from the system's packages: what they confirmed outlives a crash, and no process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postgresql_tables import ask, prepared
from real_servers import started
from redis_keys import client
from tallystick.errors import SetupError
from tallystick.servers import PostgreSQL, Redis, Server
from tallystick.servers.packaged import program
from tallystick.servers.registry import KINDS


@pytest.fixture(params=[PostgreSQL, Redis], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """In a folder that only its owner can enter, as those of tests and of root are."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    with started(request.param(folder / "server")) as running:
        yield running


def put(server: Server, value: str) -> None:
    if isinstance(server, PostgreSQL):
        ask(server.address, "CREATE TABLE kept (value text)")
        ask(server.address, "INSERT INTO kept VALUES (%s)", [value])
    else:
        client(server.address).set("kept", value)


def get(server: Server) -> str:
    if isinstance(server, PostgreSQL):
        return str(ask(server.address, "SELECT value FROM kept")[0][0])
    return str(client(server.address).get("kept").decode())


def living(server: Server) -> list[str]:
    """Processes that have the server's folder in their command line, or were started by one that has."""
    said = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if str(server.folder) in line]


def test_data_and_address_outlive_a_crash_and_a_stop(server: Server) -> None:
    address = server.address
    put(server, "confirmed")
    server.kill()
    assert not server.running
    assert living(server) == []
    server.start()
    assert get(server) == "confirmed"
    server.stop()
    assert living(server) == []
    server.start()
    assert (get(server), server.address) == ("confirmed", address)
    assert server.version[0].isdigit()


def test_another_object_finds_and_ends_it(server: Server) -> None:
    put(server, "confirmed")
    other = type(server)(server.folder)
    assert other.running
    with pytest.raises(SetupError, match="runs already"):
        other.start()
    other.stop()
    assert not server.running


def test_a_prepared_transaction_outlives_a_crash(tmp_path: Path) -> None:
    with started(PostgreSQL(tmp_path / "server")) as server:
        ask(server.address, "CREATE TABLE t (id int)")
        ask(server.address, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'tallystick/x'")
        server.kill()
        server.start()
        assert prepared(server.address) == ["tallystick/x"]
        ask(server.address, "COMMIT PREPARED 'tallystick/x'")
        assert ask(server.address, "SELECT * FROM t") == [(1,)]


def test_settings_are_those_of_the_start(tmp_path: Path) -> None:
    with started(PostgreSQL(tmp_path / "server", settings={"max_prepared_transactions": "3"})) as server:
        assert ask(server.address, "SHOW max_prepared_transactions") == [("3",)]
    with started(PostgreSQL(tmp_path / "server")) as server:
        assert ask(server.address, "SHOW max_prepared_transactions") == [("64",)]


def test_the_password_of_redis_is_in_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    with started(Redis(tmp_path / "server", settings={"requirepass": "hush"})) as server:
        assert (server.folder / "redis.conf").stat().st_mode & 0o077 == 0
        assert "hush" not in " ".join(living(server))


def test_what_is_not_installed_is_named_with_what_to_type() -> None:
    with pytest.raises(SetupError, match=r"nonesuch-server is not on this machine.*apt-get install nonesuch"):
        program("nonesuch-server", "nonesuch")


def tallystick(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "tallystick", "servers", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_as_a_person_types_it(server: Server, tmp_path: Path) -> None:
    folder, name = tmp_path / "typed", server.name
    assert name in KINDS
    try:
        up = tallystick("up", name, "--folder", folder)
        assert (up["name"], up["state"]) == (name, "running")
        (pid,) = up["pids"]
        os.kill(pid, 0)
        tallystick("down", name, "--folder", folder, "--kill")
        assert tallystick("up", name, "--folder", folder)["address"] == up["address"]
    finally:
        tallystick("down", name, "--folder", folder, "--remove")
    assert not folder.exists()
