"""Kill a job whose checkpoint is in S3, and let two drivers meet on it: output, and the journal there, are exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from killed_job import KilledJob, epochs_for, until
from kills import AROUND_THE_DECISION, KILLS
from pipeline import expected, expected_parquet, read_json, read_parquet

from real_servers import started
from s3_objects import new_path, objects_below
from tallystick.journal import Journal
from tallystick.journal.s3 import S3Store
from tallystick.prover import tally
from tallystick.servers import S3Server
from tallystick.servers.spark_cluster import SparkCluster

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

MATRIX = {"around-the-decision": AROUND_THE_DECISION, **KILLS}


class InS3(KilledJob):
    pipeline = "pipeline.py"

    def __init__(self, folder: Path, s3: S3Server, epochs: int, master: str = "local[2]") -> None:
        super().__init__(folder)
        self.s3, self.checkpoint, self.epochs, self.master = s3, new_path(), epochs, master

    def arguments(self) -> Sequence[str]:
        return ["exactly-once", str(self.folder), str(self.epochs), self.master]

    def environment(self) -> dict[str, str]:
        """Whole snapshots of the state all the time, so that the runs after a kill begin with one."""
        often = {
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
            "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
        }
        return {**self.s3.environment, "CHECKPOINT": self.checkpoint, "SPARK_SETTINGS": json.dumps(often)}

    def files(self, folder: str) -> list[str]:
        """The names in a folder of the checkpoint."""
        keys = [key for key, _ in objects_below(self.s3, f"{self.checkpoint}/{folder}")]
        return sorted(name for key in keys if (name := key.rpartition("/")[2]) and not name.endswith(".crc"))

    def check(self) -> None:
        assert tally(expected(self.epochs), read_json(self.folder)).exact
        assert tally(expected_parquet(self.epochs), read_parquet(self.folder)).exact
        assert self.files("commits") == self.files("offsets") == sorted(map(str, range(self.epochs)))
        assert {Path(name).suffix for name in self.files("state")} >= {".changelog", ".zip", ".sst"}


@pytest.mark.parametrize("where", MATRIX)
def test_a_killed_job_goes_on_from_s3(
    where: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InS3(tmp_path / "job", s3, epochs_for(MATRIX[where]))
    job.killed_at_each(MATRIX[where])
    job.check()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    journal = Journal(S3Store(f"{job.checkpoint}/tallystick"))
    assert len(journal.generations()) == len(MATRIX[where]) + 1  # every run got as far as to claim one


def test_of_two_drivers_at_once_one_goes_on(s3: S3Server, tmp_path: Path) -> None:
    """S3 has no lock: the second one starts beside the first, which then finds that it does not lead any more."""
    job = InS3(tmp_path / "job", s3, epochs=60)
    with job.running() as first:
        until(lambda: "2" in job.files("commits"), "the first driver to be at work", first)
        with job.running() as second:
            assert second.wait(240).status == 0, second.tail()
            assert first.wait(60).status != 0, first.tail()
            assert "FencedError" in first.tail()
    job.check()


def test_executors_of_a_cluster_write_their_state_to_s3(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get the jars from the driver, and the credentials from the environment of their worker."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with started(SparkCluster(tmp_path / "cluster")) as cluster:
        job = InS3(tmp_path / "job", s3, epochs=4, master=cluster.address)
        job.killed_at_each(["after-decide@2"])
    job.check()
