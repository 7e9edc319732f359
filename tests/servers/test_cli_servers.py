"""``tallystick servers``, as a person types it: the broker outlives the command that started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_clients import consume, new_topic, produce

from real_servers import Elsewhere
from tallystick.errors import ConfigError
from tallystick.servers import Kafka
from tallystick.servers.registry import KINDS, all_servers, claim, default_folder, is_there, remove, server_named


def servers(*arguments: str | Path, status: int = 0) -> str:
    """What it prints on standard output; on standard error if it fails."""
    command = [sys.executable, "-m", "tallystick", "servers", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def servers_json(*arguments: str | Path) -> Any:
    return json.loads(servers(*arguments, "--json"))


@pytest.fixture
def folder(tmp_path: Path, kafka: Kafka | Elsewhere) -> Iterator[Path]:
    """The shared broker is asked for only because it skips where none can run."""
    chosen = tmp_path / "a folder"
    yield chosen
    servers("down", "kafka", "--folder", chosen, "--kill", "--remove")


def of_status(folder: Path) -> Any:
    """What ``status`` says about the server in this folder."""
    return next((entry for entry in servers_json("status") if entry["folder"] == str(folder)), None)


def test_the_life_of_a_broker(folder: Path) -> None:
    first = servers_json("up", "kafka", "--folder", folder)
    assert (first["name"], first["version"], first["state"]) == ("kafka", Kafka(folder).version, "running")
    assert first["ready_s"] > 0
    (pid,) = first["pids"]
    topic = new_topic()
    produce(first["address"], topic, ["kept"])

    again = servers("up", "kafka", "--folder", folder)
    assert "runs already" in again
    assert first["address"] in again
    assert f"process {pid}" in again
    assert f"tallystick servers down kafka --folder '{folder}'" in again

    assert of_status(folder) == {name: value for name, value in first.items() if name != "ready_s"}
    shown = servers("status")
    assert first["address"] in shown
    assert str(folder) in shown

    assert "kafka killed" in servers("down", "kafka", "--folder", folder, "--kill")
    assert not Kafka(folder).running
    assert of_status(folder)["state"] == "stopped"

    back = servers_json("up", "kafka", "--folder", folder)
    assert back["address"] == first["address"]
    assert back["pids"] != [pid]
    assert consume(back["address"], topic) == ["kept"]

    assert servers_json("down", "kafka", "--folder", folder)["stopped"]
    assert "did not run" in servers("down", "kafka", "--folder", folder)
    assert servers_json("down", "kafka", "--folder", folder, "--remove")["removed"]
    assert not folder.exists()
    assert of_status(folder) is None


def test_what_cannot_be_is_said_in_words(tmp_path: Path) -> None:
    assert "there is no server 'oracle': needed one of kafka," in servers("up", "oracle", status=1)
    assert "--brokers" in servers("up", "hdfs", "--brokers", "3", status=2)
    assert "--brokers" in servers("up", "kafka", "--brokers", "2", status=2)
    (tmp_path / "precious.txt").touch()
    assert "is not an empty folder" in servers("up", "kafka", "--folder", tmp_path, status=1)
    assert "did not run; no data" in servers("down", "kafka", "--folder", tmp_path, "--remove")
    assert (tmp_path / "precious.txt").exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one: whoever wanted jars would have to fetch them."""
    chosen = tmp_path / "cache"
    monkeypatch.setenv("TALLYSTICK_CACHE", str(chosen))
    return chosen


def test_looking_starts_nothing_and_makes_nothing(cache: Path) -> None:
    found = servers_json("status")
    assert [entry["name"] for entry in found] == list(KINDS)
    assert {entry["state"] for entry in found} == {"never started"}
    assert servers_json("down", "kafka")["stopped"] is False
    assert not cache.exists()


@pytest.mark.parametrize("name", KINDS)
def test_a_server_is_found_where_it_was_claimed(cache: Path, tmp_path: Path, name: str) -> None:
    here, there = server_named(name), server_named(name, tmp_path / "there")
    assert here.folder == default_folder(name)
    for server in (here, there):
        assert not is_there(server)
        claim(server)
        claim(server)
        assert is_there(server)
    other = next(kind for kind in KINDS if kind != name)
    with pytest.raises(ConfigError, match=f"belongs to the server '{name}', not to '{other}'"):
        server_named(other, there.folder)
    folders = [server.folder for server in all_servers() if is_there(server)]
    assert folders == [here.folder, there.folder]
    remove(there)
    remove(there)
    assert [server.folder for server in all_servers() if is_there(server)] == [here.folder]
    assert not there.folder.exists()
