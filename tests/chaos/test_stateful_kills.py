"""Stateful jobs that are killed in the middle: output and state are those of a run without a fault.

Each job is run as ``tallystick run`` runs it, killed at an armed point, and run again to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tallystick.killpoints import ENVIRONMENT
from tallystick.prover import tally

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 300
LINES = [f"the fox {number % 3} and the dog {number % 5}" for number in range(60)]
FILES = 4


def tallystick(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """In a session of its own: an armed kill takes the whole process group down."""
    command = [sys.executable, "-m", "tallystick", *arguments]
    settings = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=settings, start_new_session=True
    )


def killed_and_run_again(kill: str, job: Path, environment: Mapping[str, str]) -> None:
    run = ("run", str(job), "--available-now", "--master", "local[2]")
    killed = tallystick(*run, environment={**environment, ENVIRONMENT: kill})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert f"killed at {kill}" in killed.stderr
    again = tallystick(*run, environment=environment)
    assert again.returncode == 0, again.stderr
    assert "verified" in again.stderr


def expected_updates() -> list[tuple[str, int]]:
    """After every file: the new count of each word in it."""
    counts: Counter[str] = Counter()
    updates: list[tuple[str, int]] = []
    for number in range(FILES):
        words = Counter(word for line in LINES[number::FILES] for word in line.split())
        counts.update(words)
        updates += [(word, counts[word]) for word in words]
    return updates


def test_the_word_count_survives_a_kill_with_its_state(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    for number in range(FILES):
        path = tmp_path / "lines" / f"{number}.txt"
        path.write_text("\n".join(LINES[number::FILES]) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
    example = EXAMPLES / "stateful_word_count.py"
    killed_and_run_again("after-decide@2", example, {"WORD_COUNT": str(tmp_path)})
    counted = tally(expected_updates(), [(row["word"], row["n"]) for row in published(tmp_path / "counts")])
    assert counted.exact, counted

    shown = tallystick("checkpoints", "show", str(tmp_path / "checkpoint"), "--sample", "100", "--json", environment={})
    assert shown.returncode == 0, shown.stderr
    [state] = json.loads(shown.stdout)["operators"][0]["state"]
    final = Counter(word for line in LINES for word in line.split())
    assert {entry["key"]["word"]: entry["value"]["value"] for entry in state["sample"]} == dict(final)


def published(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("*.json") for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_page_views_and_visitors_survive_a_kill(tmp_path: Path) -> None:
    killed_and_run_again("inside-commit@2", EXAMPLES / "pv_uv.py", {"PV_UV": str(tmp_path)})
    expected = []
    for epoch in range(6):
        views = [(f"app{number % 3}", f"user{number * 7 % 31}") for number in range((epoch + 1) * 20)]
        for app in ("app0", "app1", "app2"):
            visitors = {user for name, user in views if name == app}
            expected.append((app, sum(name == app for name, _ in views), len(visitors)))
    counted = tally(expected, [(row["app"], row["pv"], row["uv"]) for row in published(tmp_path / "counts")])
    assert counted.exact, counted


@pytest.mark.slow
def test_sessions_survive_a_kill(tmp_path: Path) -> None:
    """Each burst of five clicks is one session; the last one may still be open."""
    killed_and_run_again("after-decide@3", EXAMPLES / "sessions.py", {"SESSIONS": str(tmp_path)})
    bursts = [(f"user{number % 3}", number * 30, 5) for number in range(24)]
    found = [(row["user"], row["start"], row["clicks"]) for row in published(tmp_path / "sessions")]
    assert tally(bursts[:-1], [session for session in found if session != bursts[-1]]).exact
    assert len(found) in (23, 24)


LIMITS: list[dict[str, float | None]] = [
    {"s0": 5.0, "s1": 50.0},
    {"s0": 25.0},
    {"s1": None, "s2": 0.0},
    {"s0": 1.0, "s1": 35.0},
]
"""File after file of the control stream: the sensors whose limit changes."""


def readings(epoch: int) -> list[dict[str, object]]:
    return [{"sensor": f"s{number % 3}", "value": float(number)} for number in range(epoch * 12, epoch * 12 + 12)]


def judged(limits: list[dict[str, float | None]]) -> list[tuple[object, ...]]:
    """Each alarm with the limit of its epoch."""
    known: dict[str, float | None] = {}
    alarms: list[tuple[object, ...]] = []
    for epoch, changes in enumerate(limits):
        known.update(changes)
        for row in readings(epoch):
            high = known.get(str(row["sensor"]))
            if high is not None and float(str(row["value"])) > high:
                alarms.append((row["sensor"], row["value"], high))
    return alarms


def write_lines(path: Path, rows: list[dict[str, object]], order: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + order, 1_700_000_000 + order))


@pytest.mark.parametrize(
    "kill",
    [
        "after-pre-commit@2",  # between prepare and decide: the rules of the epoch stand, nothing is decided
        *(
            pytest.param(kill, marks=pytest.mark.slow)
            for kill in ("before-prepare@2", "before-begin@2", "inside-decide@2", "after-decide@2", "inside-commit@2")
        ),
    ],
)
def test_rules_are_those_of_the_epoch_whatever_became_of_the_control_stream(tmp_path: Path, kill: str) -> None:
    """After the kill the control stream says something else: only an epoch that had not seen it yet may notice."""
    for epoch, limits in enumerate(LIMITS):
        write_lines(tmp_path / "readings" / f"{epoch}.json", readings(epoch), epoch)
        changes: list[dict[str, object]] = [{"sensor": sensor, "high": high} for sensor, high in limits.items()]
        write_lines(tmp_path / "limits" / f"{epoch}.json", changes, epoch)
    run = ("run", str(EXAMPLES / "alarms.py"), "--available-now", "--master", "local[2]")
    environment = {"ALARMS": str(tmp_path)}
    killed = tallystick(*run, environment={**environment, ENVIRONMENT: kill})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [(tmp_path / "checkpoint" / log / "2").exists() for log in ("offsets", "commits")] == [True, False]
    write_lines(tmp_path / "limits" / "2.json", [{"sensor": "s0", "high": -1.0}], 2)
    again = tallystick(*run, environment=environment)
    assert again.returncode == 0, again.stderr
    seen: list[dict[str, float | None]] = (
        LIMITS if kill != "before-prepare@2" else [*LIMITS[:2], {"s0": -1.0}, LIMITS[3]]
    )
    found = [(row["sensor"], row["value"], row["high"]) for row in published(tmp_path / "alarms")]
    counted = tally(judged(seen), found)
    assert counted.exact, counted

    shown = tallystick("checkpoints", "show", str(tmp_path / "checkpoint"), "2", "--no-state", "--json", environment={})
    assert shown.returncode == 0, shown.stderr
    [rules] = json.loads(shown.stdout)["rules"]
    known: dict[str, float | None] = {}
    for limits in seen[:3]:
        known.update(limits)
    told = {entry["key"]["sensor"]: entry["value"]["high"] for entry in rules["sample"]}
    assert (rules["since_epoch"], told) == (2, {name: high for name, high in known.items() if high is not None})


TRANSFERS = """
from pathlib import Path
import tallystick as ts

HERE = Path(__file__).parent


def matched(sent, received):
    return sent.join(received, "id").selectExpr("id", "amount")


job = ts.Job(
    "transfers",
    source={
        "sent": ts.sources.Files(HERE / "sent", format="json", schema="id long, amount long", max_files_per_epoch=3),
        "received": ts.sources.Files(HERE / "received", format="json", schema="id long", max_files_per_epoch=1),
    },
    steps=matched,
    sink=[
        ts.Output(ts.sinks.Files(HERE / "debits", format="json"), "debits", select=["id", "-amount as amount"]),
        ts.Output(ts.sinks.Files(HERE / "credits", format="json"), "credits"),
    ],
    checkpoint=ts.Checkpoint(HERE / "checkpoint", interval="0s"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
"""


def entries(folder: Path) -> list[tuple[object, object]]:
    return [(row["id"], row["amount"]) for row in published(folder)]


def test_two_inputs_are_cut_at_one_line_and_no_transfer_is_half_visible(tmp_path: Path) -> None:
    """One input is three times as fast. Killed between two commits of an epoch; then all of it is there, or none."""
    (tmp_path / "job.py").write_text(TRANSFERS)
    for name in ("sent", "received"):
        (tmp_path / name).mkdir()
        for number in range(6):
            ids = range(number * 10, number * 10 + 10)
            path = tmp_path / name / f"{number}.json"
            path.write_text("".join(json.dumps({"id": id_, "amount": id_ + 1}) + "\n" for id_ in ids))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    killed_and_run_again("inside-commit@3", tmp_path / "job.py", {})
    debits, credits_ = entries(tmp_path / "debits"), entries(tmp_path / "credits")
    assert tally(((id_, id_ + 1) for id_ in range(60)), credits_).exact
    assert tally(((id_, -id_ - 1) for id_ in range(60)), debits).exact

    cut = tallystick("checkpoints", "show", str(tmp_path / "checkpoint"), "1", "--no-state", "--json", environment={})
    assert cut.returncode == 0, cut.stderr
    offsets = {source["name"]: source["offsets"]["0"] for source in json.loads(cut.stdout)["sources"]}
    assert offsets == {"sent": 1, "received": 1}, "one line through both, after as many epochs"
