"""Which Python Spark's processes run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tallystick.spark.interpreter import LAUNCHER, OF_DRIVER, OF_TASKS, RUNS, interpreter_chosen, launcher_fits


@pytest.fixture(autouse=True)
def _nobody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OF_TASKS, OF_DRIVER, RUNS, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_launcher_takes_sparks_zips_off_the_path_and_nothing_else(tmp_path: Path) -> None:
    zips = [tmp_path / "python lib" / "pyspark.zip", tmp_path / "py4j-0.10.9.9-src.zip"]
    kept = [tmp_path / "my pyspark.zip.d", tmp_path / "jobs.zip"]
    path = os.pathsep.join(map(str, [zips[0], kept[0], zips[1], kept[1]]))
    printed = subprocess.run(
        [str(LAUNCHER), "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:])", "a b"],
        env={"PYTHONPATH": path, RUNS: sys.executable},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{os.pathsep.join(map(str, kept))} {sys.executable} a b\n"


@pytest.mark.parametrize(
    ("master", "fits"),
    [
        ("local", True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        (None, False),
    ],
)
def test_it_is_for_one_machine(master: str | None, fits: bool) -> None:
    assert launcher_fits(master) is fits


def test_it_is_for_the_spark_that_the_driver_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert launcher_fits("local[2]")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert not launcher_fits("local[2]")


def test_the_environment_is_as_before_when_the_session_is_made() -> None:
    before = dict(os.environ)
    with interpreter_chosen("local[2]", None):
        assert {name: os.environ[name] for name in (OF_TASKS, OF_DRIVER, RUNS)} == {
            OF_TASKS: str(LAUNCHER),
            OF_DRIVER: str(LAUNCHER),
            RUNS: sys.executable,
        }
    assert dict(os.environ) == before


def test_who_has_chosen_keeps_his_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    with interpreter_chosen("local[2]", "/opt/python"):
        assert (os.environ[OF_TASKS], os.environ[OF_DRIVER]) == ("/opt/python", sys.executable)
    monkeypatch.setenv(OF_TASKS, "/usr/bin/python3")
    with interpreter_chosen("local[2]", None):
        assert os.environ[OF_TASKS] == "/usr/bin/python3"
    assert os.environ[OF_TASKS] == "/usr/bin/python3"


def test_on_a_cluster_it_is_the_drivers_own() -> None:
    with interpreter_chosen("spark://host:7077", None):
        assert os.environ[OF_TASKS] == os.environ[OF_DRIVER] == sys.executable
