"""A server of the lake is killed while a job writes to it, and comes back on its data: nothing is lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_job import RUN_TIMEOUT_S, finish
from test_lake_kill_matrix import Lake, check

from real_servers import started
from s3_objects import make_bucket
from tallystick.servers import Hdfs, S3Server, Server
from tallystick.servers.s3 import VERSITYGW

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

EPOCHS = 12
OUTAGES = (3, 7)
"""The server is killed when these epochs are in Spark's commit log, so that a later one is in the middle of it."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with started(Hdfs(tmp_path / "hdfs")) as hdfs, started(S3Server(tmp_path / "s3")) as s3:
        make_bucket(s3)
        yield Lake(tmp_path / "job", hdfs, s3)


def wait_for_epoch(lake: Lake, epoch: int) -> None:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not (lake.folder / "checkpoint" / "commits" / str(epoch)).exists():
        assert time.monotonic() < deadline, f"epoch {epoch} does not end"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["hdfs", "s3"])
def test_a_server_that_is_killed_twice(lake: Lake, kind: str) -> None:
    server: Server | object = lake.hdfs if kind == "hdfs" else lake.s3
    assert isinstance(server, Server)
    if kind == "s3" and lake.s3.product != VERSITYGW:
        pytest.skip("moto forgets everything when it is killed: needs versitygw, sh scripts/ensure-versitygw.sh")
    lake.sinks, lake.epochs = ("delta", kind), EPOCHS
    with lake.running(LAKE_RESTARTS="yes") as process:
        for epoch in OUTAGES:
            wait_for_epoch(lake, epoch)
            server.kill()
            time.sleep(3)
            server.start()
        finish(process)
    check(lake, 0)
