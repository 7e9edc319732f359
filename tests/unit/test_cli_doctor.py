"""``tallystick doctor``: each check is shown a machine that lacks something."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from cli_runner import Tally
from tallystick.cli import checks
from tallystick.spark import faststart


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_this_machine(tally: Tally) -> None:
    ran = tally("doctor", "--json")
    failed = [check for check in ran.json["checks"] if check["status"] == "fail"]
    assert (ran.status, failed) == (0, [])
    assert ran.json["ok"] is True
    names = [check["name"] for check in ran.json["checks"]]
    assert names[:5] == ["java", "python", "pyspark", "pyarrow", "tallystick"]
    for check in ran.json["checks"]:
        assert bool(check["advice"]) == (check["status"] != "ok")


def test_something_fails(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    shown = tally("doctor")
    assert shown.status == 1
    assert "not ready: java" in shown.out
    assert "openjdk-17" in shown.out
    assert tally("doctor", "--json").json["ok"] is False


@pytest.mark.parametrize(
    ("says", "status"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('openjdk version "11.0.2" 2019-01-15', "fail"),
        ('java version "1.8.0_301"', "fail"),
        ("something else", "warn"),
    ],
)
def test_java_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: str) -> None:
    program(tmp_path / "bin" / "java", f"echo '{says}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert checks.java().status == status


def test_java_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "java", "exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert checks.java().status == "fail"


def test_packages() -> None:
    assert checks.package("pyspark", checks.PYSPARK).status == "ok"
    assert checks.package("pyspark", "3.5.").status == "fail"
    missing = checks.package("no-such-package-here", "1.")
    assert (missing.status, missing.advice) == ("fail", "pip install 'no-such-package-here==1.*'")


def test_worker_python(tmp_path: Path) -> None:
    assert checks.worker_python({}).status == "ok"
    assert checks.worker_python({"PYSPARK_PYTHON": sys.executable}).status == "ok"
    assert checks.worker_python({"PYSPARK_PYTHON": str(tmp_path / "python")}).status == "fail"
    without = program(tmp_path / "without", "echo \"No module named 'tallystick'\" >&2; exit 1")
    assert "No module named" in checks.worker_python({"PYSPARK_PYTHON": str(without)}).found
    older = program(tmp_path / "older", "echo 3.9")
    assert checks.worker_python({"PYSPARK_PYTHON": str(older)}).status == "fail"
    other = program(tmp_path / "other", f"echo {sys.version_info[0]}.{sys.version_info[1]}")
    assert checks.worker_python({"PYSPARK_PYTHON": str(other)}).status == "warn"


def test_spark_settings(tmp_path: Path) -> None:
    assert checks.spark_environment({}).status == "ok"
    assert checks.spark_environment({"SPARK_REMOTE": "sc://host"}).status == "fail"
    assert checks.spark_environment({"SPARK_HOME": str(tmp_path)}).status == "fail"
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.12-3.5.0.jar"
    jar.touch()
    assert checks.spark_environment({"SPARK_HOME": str(tmp_path)}).status == "fail"
    jar.rename(jar.with_name("spark-core_2.13-4.2.0.jar"))
    assert checks.spark_environment({"SPARK_HOME": str(tmp_path)}).status == "ok"


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.folder("cache", tmp_path / "not" / "yet", "advice").status == "ok"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    blocked = checks.folder("cache", tmp_path / "file" / "below", "choose another")
    assert (blocked.status, blocked.advice) == ("fail", "choose another")
    monkeypatch.setattr(checks, "DISK_LOW_BYTES", 1 << 62)
    assert checks.folder("cache", tmp_path, "").status == "warn"
    monkeypatch.setattr(checks, "DISK_FULL_BYTES", 1 << 62)
    assert checks.folder("cache", tmp_path, "").status == "fail"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    assert checks.folder("cache", tmp_path, "").status == "fail"


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MEMORY_NEEDED_BYTES", 1 << 62)
    assert checks.memory().status == "warn"


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    check = checks.hostname()
    assert check.status == "warn"
    assert "/etc/hosts" in check.advice


def test_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.clock().status == "ok"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert checks.clock().status == "warn"


def test_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_CACHE", str(tmp_path))
    assert checks.fast_start().status == "warn"
    java = faststart._java()
    assert java is not None
    (tmp_path / f"spark-{faststart._key(java)}-1.jsa").write_bytes(b"x")
    assert checks.fast_start().status == "ok"
