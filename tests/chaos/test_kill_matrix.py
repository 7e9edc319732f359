"""Kill a real job with SIGKILL at every point of the protocol, restart it, compare input and output as multisets.

Run K is killed at point K of epoch K+1 and the next run takes over, so that N points cost N+1 starts. Each kill hits a
fresh epoch, and each restart has to settle the epoch that the kill left behind.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from killed_job import KilledJob, epochs_for, note
from kills import KILLS
from pipeline import expected, expected_parquet, read_json, read_parquet

from tallystick.journal import Journal, audit_lines
from tallystick.journal.posix import PosixStore
from tallystick.killpoints import ONCE, POINTS
from tallystick.prover import Tally, tally

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

WEAKER_MODES_KILLS = ("after-decide@1", "inside-commit@2", "before-return@3")


class Matrix(KilledJob):
    pipeline = "pipeline.py"

    def __init__(self, mode: str, folder: Path, epochs: int, master: str = "local[2]") -> None:
        super().__init__(folder)
        self.mode, self.epochs, self.master = mode, epochs, master

    def arguments(self) -> list[str]:
        return [self.mode, str(self.folder), str(self.epochs), self.master]


def killed_at_each(mode: str, folder: Path, kills: Sequence[str]) -> tuple[Tally, Tally]:
    epochs = epochs_for(kills)
    Matrix(mode, folder, epochs).killed_at_each(kills)
    in_json, in_parquet = (
        tally(expected(epochs), read_json(folder)),
        tally(expected_parquet(epochs), read_parquet(folder)),
    )
    print(f"\n{mode}, {len(kills)} kills: json {in_json}, parquet {in_parquet}")
    return in_json, in_parquet


def test_the_matrix_has_every_kill_point() -> None:
    assert {kill.split("@")[0] for kills in KILLS.values() for kill in kills} == set(POINTS)


@pytest.mark.parametrize("where", KILLS)
def test_exactly_once_neither_loses_nor_repeats_at_any_point(tmp_path: Path, where: str) -> None:
    in_json, in_parquet = killed_at_each("exactly-once", tmp_path / "job", KILLS[where])
    note(len(KILLS[where]), ["collection"], {"files": in_json + in_parquet})
    assert in_json.exact, in_json
    assert in_parquet.exact, in_parquet
    assert in_json.expected > 0
    assert_nothing_is_left_open(tmp_path / "job")
    assert_audit_agrees(tmp_path / "job", epochs_for(KILLS[where]))


@pytest.mark.slow  # in make test the demo and the Kafka matrix show the same
def test_at_least_once_repeats_and_never_loses(tmp_path: Path) -> None:
    in_json, in_parquet = killed_at_each("at-least-once", tmp_path / "job", WEAKER_MODES_KILLS)
    assert in_json.lost == in_json.phantom == in_parquet.lost == in_parquet.phantom == 0
    assert in_json.repeated > 0, "a test that shows no repeats proves nothing about exactly-once"


@pytest.mark.slow
def test_at_most_once_loses_and_never_repeats(tmp_path: Path) -> None:
    in_json, in_parquet = killed_at_each("at-most-once", tmp_path / "job", WEAKER_MODES_KILLS)
    assert in_json.repeated == in_json.phantom == in_parquet.repeated == in_parquet.phantom == 0
    assert in_json.lost > 0, "a test that shows no losses proves nothing about exactly-once"


def test_a_killed_worker_is_retried_without_loss_or_repeat(tmp_path: Path) -> None:
    """Only the Python worker dies, after it pre-committed: Spark runs the task again in the same attempt."""
    folder, epochs = tmp_path / "job", 4
    once = tmp_path / "once"
    Matrix("exactly-once", folder, epochs, "local[2,4]").run("after-pre-commit@2:worker", **{ONCE: str(once)})
    assert once.exists(), "no worker was killed"
    assert tally(expected(epochs), read_json(folder)).exact
    assert tally(expected_parquet(epochs), read_parquet(folder)).exact
    assert_nothing_is_left_open(folder)


def assert_nothing_is_left_open(folder: Path) -> None:
    """The last epoch's staging may still be there, empty; nothing may be staged in it."""
    staged = [path for sink in ("json", "parquet") for path in (folder / sink).rglob("*.staged")]
    leftovers = [path for path in staged if f"{last_epoch(folder):012d}." not in str(path)]
    assert not leftovers


def last_epoch(folder: Path) -> int:
    return max(int(path.name) for path in (folder / "checkpoint" / "commits").iterdir() if path.name.isdigit())


def assert_audit_agrees(folder: Path, epochs: int) -> None:
    """The audit trail counts what the readers count, and every kill left an attempt behind."""
    lines = list(audit_lines(Journal(PosixStore(folder / "checkpoint" / "tallystick"))))
    first_commits: dict[int, str] = {}
    for line in lines:
        if line.get("decision") == "COMMIT" and "json" in line["sinks"]:
            first_commits.setdefault(line["epoch"], line["sinks"]["json"])
    counted = sum(int(total.split(":")[0]) for total in first_commits.values())
    assert counted == len(list(expected(epochs))), json.dumps(lines, indent=1)
