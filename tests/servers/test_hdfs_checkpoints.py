"""A checkpoint on a real HDFS: led, marked, shown and deleted as on a local disk."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from cancelled import cancel
from cli_runner import Tally
from real_servers import started
from tallystick.errors import CheckpointError
from tallystick.journal.lease import Leases
from tallystick.journal.stores import open_store
from tallystick.servers import Hdfs
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with started(Hdfs(tmp_path_factory.mktemp("hdfs"))) as server:
        yield server


@pytest.fixture
def location(hdfs: Hdfs) -> str:
    return f"{hdfs.address}/{uuid.uuid4().hex}/checkpoint"


def counting(location: str, rows: int, on_cancel: str = "keep") -> ts.Job:
    given = [{"id": number, "app": f"app{number % 3}"} for number in range(rows)]
    return ts.Job(
        "on-hdfs",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=Memory(location.split("/")[-2]),
        checkpoint=ts.Checkpoint(location, interval="0s", on_cancel=on_cancel),
    )


def test_it_is_led_marked_shown_and_checked(
    spark: SparkSession, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(location, 20).run(spark, available_now=True)
    assert Leases(open_store(f"{location}/tallystick", spark)).term() == 1
    tally = Tally(capsys)
    assert [one["status"] for one in tally("checkpoints", "list", location, "--json").json] == ["finished", "finished"]
    shown = tally("checkpoints", "show", location, "--json")
    assert shown.status == 0, shown.err
    assert shown.json["sources"][0]["offsets"] == {"0": 20}
    [state] = shown.json["operators"][0]["state"]
    assert {entry["key"]["app"]: entry["value"]["count"] for entry in state["sample"]} == {
        "app0": 7,
        "app1": 7,
        "app2": 6,
    }
    assert shown.json["operators"][0]["epoch_bytes"] > 0
    logs = open_store(location, spark)
    for log in ("offsets/1", "commits/1"):
        logs.delete(log)
    with pytest.raises(CheckpointError, match=r"journal knows of epoch 1, but hdfs:.*offsets ends at epoch 0"):
        counting(location, 30).run(spark, available_now=True)


def test_a_cancelled_job_deletes_it(spark: SparkSession, location: str) -> None:
    cancel(counting(location, 20, on_cancel="delete"), spark)
    logs = open_store(location, spark)
    assert logs.list("offsets") == logs.list("commits") == []
    assert logs.read("tallystick.json") is None
