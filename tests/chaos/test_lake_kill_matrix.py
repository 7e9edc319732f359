"""Kill a job that writes to HDFS, S3 and Delta in one epoch, at every point of the protocol, and compare.

Run K is killed at point K of epoch K+1 and the next run takes over. In ``make test`` all three sinks are in one job; in
``make soak`` each one is alone too, so that the kill inside a commit hits each of them between two slices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from killed_job import KilledJob, epochs_for, note
from kills import IN_SHORT, KILLS, MATRIX
from pipeline import expected

from hdfs_folders import files_below, new_folder, parquet_rows
from real_servers import Elsewhere
from s3_objects import new_path, objects_below, rows_below, uploads_below
from tallystick.killpoints import ONCE, POINTS
from tallystick.prover import Tally, tally
from tallystick.servers import Hdfs, S3Server

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

ALL = ("delta", "hdfs", "s3")
ALONE = [pytest.param((kind,), id=kind, marks=pytest.mark.slow) for kind in ALL]


class Lake(KilledJob):
    """Where one campaign writes to, and what is found there."""

    pipeline = "lake_pipeline.py"

    def __init__(self, folder: Path, hdfs: Hdfs | Elsewhere, s3: S3Server) -> None:
        super().__init__(folder)
        self.hdfs, self.s3 = hdfs, s3
        self.on_hdfs, self.on_s3 = new_folder(hdfs.address), new_path()
        self.sinks: Sequence[str] = ALL
        self.epochs, self.master = 0, "local[2]"

    def arguments(self) -> list[str]:
        return [",".join(self.sinks), str(self.folder), str(self.epochs), self.master]

    def environment(self) -> dict[str, str]:
        return {**self.s3.environment, "LAKE_HDFS": self.on_hdfs, "LAKE_S3": self.on_s3}

    def read(self, kind: str) -> list[tuple[str, int]]:
        if kind == "delta":
            rows = DeltaTable(str(self.folder / "delta")).to_pyarrow_table().to_pylist()
            return [(row["key"], row["count"]) for row in rows]
        if kind == "s3":
            lines = [json.loads(line) for line in rows_below(self.s3, self.on_s3, ".json")]
            return [(row["key"], row["count"]) for row in lines]
        return [
            (path.split("/key=")[1].split("/")[0], row["count"])
            for path, data in files_below(self.on_hdfs)
            if path.endswith(".parquet")
            for row in parquet_rows(data)
        ]

    def tally(self, kind: str) -> Tally:
        return tally(expected(self.epochs), self.read(kind))

    def left_open(self, kind: str) -> list[str]:
        """What is begun or prepared. The last epoch's notes and empty folders stay until the next one."""
        if kind == "delta":
            return [str(path) for path in (self.folder / "delta").rglob("*.staged")]
        if kind == "s3":
            return uploads_below(self.s3, self.on_s3)
        return [path for path, _ in files_below(self.on_hdfs) if path.endswith(".staged")]


@pytest.fixture
def lake(tmp_path: Path, hdfs: Hdfs | Elsewhere, s3: S3Server) -> Lake:
    return Lake(tmp_path / "job", hdfs, s3)


def check(lake: Lake, kills: int) -> None:
    counted = {kind: lake.tally(kind) for kind in lake.sinks}
    if kills:
        note(kills, ["collection"], counted)
    for kind, found in counted.items():
        print(f"\n{kind}, {kills} kills: {found}")
        assert found.exact, (kind, found)
        assert found.expected > 0
        assert lake.left_open(kind) == []


def test_the_matrix_has_every_kill_point() -> None:
    assert {kill.split("@")[0] for kills in KILLS.values() for kill in kills} == set(POINTS)


@pytest.mark.parametrize("where", IN_SHORT)
@pytest.mark.parametrize("sinks", [pytest.param(ALL, id="together"), *ALONE])
def test_neither_lost_nor_repeated_at_any_point(lake: Lake, sinks: tuple[str, ...], where: str) -> None:
    kills = MATRIX[where]
    lake.sinks, lake.epochs = sinks, epochs_for(kills)
    lake.killed_at_each(kills)
    check(lake, len(kills))
    if "s3" in sinks:
        notes = [key for key, _ in objects_below(lake.s3, lake.on_s3) if "/.tallystick/" in key]
        assert len(notes) <= 2 * 2, "only the last epoch's notes are kept"


def test_a_killed_worker_is_retried_without_loss_or_repeat(lake: Lake, tmp_path: Path) -> None:
    """Only the Python worker dies, after it pre-committed: Spark runs the task again in the same attempt."""
    once = tmp_path / "once"
    lake.epochs, lake.master = 4, "local[2,4]"
    lake.run("after-pre-commit@2:worker", **{ONCE: str(once)})
    assert once.exists(), "no worker was killed"
    check(lake, 1)
