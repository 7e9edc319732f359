"""``tallystick run`` as a user starts it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

TIMEOUT_S = 300
FAILING = """
import tallystick as ts
from pyspark.sql import functions as F

rows = ts.sources.Collection([{"id": 1}])

def unknown_column(rows):
    return rows.select("nope")

def bad_row(rows):
    fail = F.udf(lambda value: 1 // (value - value), "long")
    return rows.select(fail("id").alias("id"))

first = ts.Job("first", source=rows, steps=unknown_column, sink=ts.sinks.Memory("t"), checkpoint="c-first")
second = ts.Job("second", source=rows, steps=bad_row, sink=ts.sinks.Memory("t"), checkpoint="c-second")
"""


def tallystick(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tallystick", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)


def published(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("*.json") for line in path.read_text().splitlines()]


def run_until(log: Path, text: str, sent: signal.Signals, cwd: Path) -> int:
    """Start the starter job as on a terminal, and press Ctrl-C when its output holds the text."""
    command = [sys.executable, "-m", "tallystick", "run", "app_pv.py", "--master", "local[2]", "--fast-start"]
    with log.open("w") as errors:
        # A terminal sends Ctrl-C to the whole group: driver, JVM and all.
        running = subprocess.Popen(command, cwd=cwd, stderr=errors, start_new_session=True)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while text not in log.read_text():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        os.killpg(running.pid, sent)
        return running.wait(TIMEOUT_S)
    finally:
        running.kill()
        running.wait()


def committed(cwd: Path) -> list[int]:
    """What the journal says; each of these epochs must be in Spark's commit log too."""
    answer = json.loads(tallystick("audit", "checkpoint", "--json", cwd=cwd).stdout)
    assert all(epoch["settled"] for epoch in answer["epochs"] if epoch["decision"] == "COMMIT")
    return [epoch["epoch"] for epoch in answer["epochs"] if epoch["decision"] == "COMMIT"]


def test_the_starter_job_stops_between_two_epochs_and_goes_on(tmp_path: Path) -> None:
    assert tallystick("init", cwd=tmp_path).returncode == 0
    log = tmp_path / "log"
    assert run_until(log, "epoch 1 ", signal.SIGINT, tmp_path) == 0, log.read_text()
    assert re.search(r"stopped after .* · lag [0-9,]+ records$", log.read_text(), re.MULTILINE), log.read_text()
    assert "Traceback" not in log.read_text()
    before = committed(tmp_path)
    assert before[:2] == [0, 1]
    behind = json.loads(tallystick("lag", "app_pv.py", "--json", cwd=tmp_path).stdout)
    assert (behind["epoch"], behind["sources"][0]["lag"]) == (before[-1], {"records": 10_000 - 1000 * len(before)})

    ran = tallystick("run", "app_pv.py:app-pv", "--available-now", "--master", "local[2]", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    epochs = [int(line.split()[1]) for line in ran.stderr.splitlines() if line.startswith("epoch ")]
    assert [*before, *epochs] == list(range(10))
    assert re.search(r"done after .* · lag nothing$", ran.stderr, re.MULTILINE), ran.stderr

    counts = [(row["app"], row["pv"]) for row in published(tmp_path / "out")]
    assert len(counts) == len(set(counts)) == 30
    assert {app: max(pv for name, pv in counts if name == app) for app, _ in counts} == {
        "app1": 3334,
        "app2": 3333,
        "app3": 3333,
    }
    listed = tallystick("transactions", "list", "checkpoint", "--job", "app_pv.py", "--json", cwd=tmp_path)
    assert json.loads(listed.stdout) == []


@pytest.mark.parametrize(
    ("job", "expected"), [("first", "jobs.py, line 8: AnalysisException: "), ("second", "ZeroDivisionError")]
)
def test_a_failure_is_one_paragraph_and_status_1(tmp_path: Path, job: str, expected: str) -> None:
    (tmp_path / "jobs.py").write_text(FAILING)
    ran = tallystick("run", f"jobs.py:{job}", "--available-now", "--master", "local[2]", cwd=tmp_path)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert expected in last
