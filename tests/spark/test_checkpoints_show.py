"""``tallystick checkpoints`` on real checkpoints: state by key, joins, several sources, a running job, a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from cli_runner import Tally
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark

IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def counting(folder: Path, count: int = 40) -> ts.Job:
    rows = [{"id": number, "app": f"app{number % 3}"} for number in range(count)]
    sink = Memory(f"show-{folder.name}")
    sink.clear()
    return ts.Job(
        "pv",
        source=ts.sources.Collection(rows, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=sink,
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


@pytest.mark.parametrize("provider", [None, IN_MEMORY], ids=["rocksdb", "in memory"])
def test_a_checkpoint_in_full(spark: SparkSession, tally: Tally, tmp_path: Path, provider: str | None) -> None:
    if provider is not None:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    try:
        counting(tmp_path).run(spark, available_now=True)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    found = tally("checkpoints", "show", tmp_path / "checkpoint", "2", "--json").json
    assert [(source["name"], source["offsets"]) for source in found["sources"]] == [("collection", {"0": 30})]
    [operator] = found["operators"]
    assert (operator["name"], operator["partitions"]) == ("stateStoreSave", 2)
    assert operator["bytes"] >= operator["epoch_bytes"] > 0
    [state] = operator["state"]
    assert state["keys"] == 3
    assert [(entry["key"]["app"], entry["value"]["count"]) for entry in state["sample"]] == [
        ("app0", 10),
        ("app1", 10),
        ("app2", 10),
    ]
    assert {transaction["state"] for transaction in found["transactions"]} == {"committed"}
    assert found["bytes"] > operator["epoch_bytes"]

    printed = tally("checkpoints", "show", tmp_path / "checkpoint").out.splitlines()
    assert printed[0].startswith("chk-3 of job pv: finished")
    assert printed[1:3] == ["offset (0,40)", "count (app0,14) (app1,13) (app2,13)"]

    by_key = tally("checkpoints", "show", tmp_path / "checkpoint", "--key", "app1", "--json").json
    [only] = by_key["operators"][0]["state"][0]["sample"]
    assert (only["key"], only["value"]) == ({"app": "app1"}, {"count": 13})
    some = tally("checkpoints", "show", tmp_path / "checkpoint", "--sample", "1").out
    assert "count (app0,14) … 2 more keys" in some


def test_a_copy_and_a_running_job_are_read_and_not_changed(spark: SparkSession, tally: Tally, tmp_path: Path) -> None:
    query = counting(tmp_path).start(spark)
    try:
        query.processAllAvailable()
        running = tally("checkpoints", "show", tmp_path / "checkpoint", "3", "--json")
        assert running.status == 0, running.err
        listed = tally("checkpoints", "list", tmp_path / "checkpoint", "--json").json
        assert [entry["status"] for entry in listed] == ["finished"] * 4
        assert all(entry["duration_s"] > 0 and entry["triggered_at"] > 0 for entry in listed)
        assert query.isActive
    finally:
        query.stop()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "copy").rglob("*"))}
    copied = tally("checkpoints", "show", tmp_path / "copy", "3", "--json").json
    assert copied["operators"] == running.json["operators"]
    assert copied["sources"] == running.json["sources"]
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "copy").rglob("*"))} == before


def test_two_sources_are_named_in_the_order_of_sparks_log(spark: SparkSession, tally: Tally, tmp_path: Path) -> None:
    """The steps read the second source first; and each side of the join is shown."""

    def steps(left: DataFrame, right: DataFrame) -> DataFrame:
        return right.join(left, "id")

    sink = Memory(f"join-{tmp_path.name}")
    sink.clear()
    job = ts.Job(
        "join",
        source={
            "payments": ts.sources.Collection(
                [{"id": number, "amount": number * 10} for number in range(6)], per_epoch=6
            ),
            "orders": ts.sources.Collection([{"id": number, "item": f"i{number}"} for number in range(4)], per_epoch=4),
        },
        steps=steps,
        sink=sink,
        checkpoint=ts.Checkpoint(tmp_path / "checkpoint", interval="0s"),
    )
    job.run(spark, available_now=True)
    found = tally("checkpoints", "show", tmp_path / "checkpoint", "--json").json
    assert [(source["name"], source["offsets"]) for source in found["sources"]] == [
        ("orders", {"0": 4}),
        ("payments", {"0": 6}),
    ]
    [operator] = found["operators"]
    assert {state["name"]: state["keys"] for state in operator["state"]} == {"left": 4, "right": 6}
    printed = tally("checkpoints", "show", tmp_path / "checkpoint").out
    assert "offset orders (0,4)" in printed


def test_state_that_is_gone_is_said(spark: SparkSession, tally: Tally, tmp_path: Path) -> None:
    counting(tmp_path).run(spark, available_now=True)
    for path in (tmp_path / "checkpoint" / "state" / "0").glob("*/*.changelog"):
        path.unlink()
    ran = tally("checkpoints", "show", tmp_path / "checkpoint", "3")
    assert ran.status == 1
    assert "the state of operator 0 (stateStoreSave) at epoch 3 cannot be read" in ran.err
    assert tally("checkpoints", "show", tmp_path / "checkpoint", "3", "--no-state").status == 0
