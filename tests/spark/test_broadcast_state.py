"""Broadcast state on a real Spark: every epoch sees the rules up to its own line of the control stream, also again."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import tallystick as ts
from tallystick.errors import CheckpointError, ConfigError, SourceError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import tally
from tallystick.sinks.memory import Memory
from tallystick.spark import savepoint

pytestmark = pytest.mark.spark

# workers cannot import a test module, but they need the classes below
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

EPOCHS = 4
PER_EPOCH = 10
READINGS: list[dict[str, Any]] = [{"id": number, "sensor": f"s{number % 2}"} for number in range(EPOCHS * PER_EPOCH)]
LIMITS: list[dict[str, Any]] = [
    {"name": "s0", "high": 5},
    {"name": "s1", "high": 100},
    {"name": "s0", "high": 25},
    {"name": "s1", "high": None},
]
"""One per epoch. The last one takes the limit of s1 away."""
SOCKET: Any = ts.sources.Socket("log", listen="127.0.0.1:1")


def expected(limits: list[dict[str, Any]] = LIMITS) -> list[tuple[int, int | None]]:
    """Each reading with the limit of its epoch; readings without one are left out."""
    known: dict[str, int] = {}
    rows: list[tuple[int, int | None]] = []
    for epoch in range(EPOCHS):
        change = limits[epoch]
        known.pop(change["name"], None)
        if change["high"] is not None:
            known[change["name"]] = change["high"]
        of_epoch = READINGS[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH]
        rows += [(row["id"], known[row["sensor"]]) for row in of_epoch if row["sensor"] in known]
    return rows


def limits_of(rows: list[dict[str, Any]] = LIMITS, **settings: Any) -> ts.state.Broadcast:
    control = ts.sources.Collection(rows, "name string, high long", per_epoch=1, name="limits")
    return ts.state.Broadcast("limits", control, **{"key": "name", "remove": "high is null", **settings})


def job(folder: Path, limits: ts.state.Broadcast, steps: Callable[[DataFrame], DataFrame], **settings: Any) -> ts.Job:
    settings.setdefault("sink", ts.sinks.Files(folder / "out", format="json"))
    return ts.Job(
        "limits",
        source=ts.sources.Collection(READINGS, per_epoch=PER_EPOCH, name="readings"),
        broadcast=limits,
        steps=steps,
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
        **settings,
    )


def declared(folder: Path, limits: ts.state.Broadcast) -> ts.Job:
    return job(folder, limits, lambda readings: limits.join(readings, on="sensor"))


def joined(folder: Path, rows: list[dict[str, Any]] = LIMITS) -> ts.Job:
    return declared(folder, limits_of(rows))


def run(declared: ts.Job, spark: SparkSession) -> list[str]:
    endings: list[str] = []
    declared.run(spark, available_now=True, on_finished=lambda _, finished: endings.append(finished.how))
    return endings


def found(folder: Path) -> list[tuple[int, Any]]:
    paths = (folder / "out").glob("*.json")
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [(row["id"], row.get("high")) for row in rows]


def repeat_epoch(folder: Path, epoch: int) -> None:
    for path in (folder / "checkpoint" / "commits").glob(f"*{epoch}*"):
        path.unlink()


def other_limits(from_epoch: int) -> list[dict[str, Any]]:
    """The same control stream, but for somebody who reads it once more: other limits at the same offsets."""
    return LIMITS[:from_epoch] + [{**row, "high": -1} for row in LIMITS[from_epoch:]]


def test_an_epoch_sees_the_rules_of_its_line_and_sees_them_again(spark: SparkSession, tmp_path: Path) -> None:
    assert run(joined(tmp_path), spark) == ["written"] * EPOCHS
    assert tally(expected(), found(tmp_path)).exact

    repeat_epoch(tmp_path, 3)  # and the control stream would now say something else
    assert run(joined(tmp_path, other_limits(3)), spark) == ["verified"]
    journal = Journal(PosixStore(tmp_path / "checkpoint" / "tallystick"))
    assert not list(journal.notes()), "the replay was made with the same rules"
    records = journal.records()
    assert len({record.read.rules for record in records}) == EPOCHS, "each decision names the rules that it saw"


def test_expired_slices_are_written_again_with_the_rules_of_their_epoch(spark: SparkSession, tmp_path: Path) -> None:
    run(joined(tmp_path), spark)
    repeat_epoch(tmp_path, 3)
    for path in (tmp_path / "out").glob(f"part-{3:012d}-*"):
        path.unlink()
    for path in (tmp_path / "out" / ".tallystick").glob(f"*/{3:012d}.*/*"):
        shutil.rmtree(path)
    assert not tally(expected(), found(tmp_path)).exact
    assert run(joined(tmp_path, other_limits(3)), spark) == ["rewritten"]
    assert tally(expected(), found(tmp_path)).exact


@pytest.mark.slow
def test_at_most_once_decides_before_it_knows_the_rules(spark: SparkSession, tmp_path: Path) -> None:
    def once() -> ts.Job:
        limits = limits_of()
        return job(tmp_path, limits, lambda readings: limits.join(readings, on="sensor"), guarantee="at-most-once")

    assert run(once(), spark) == ["written"] * EPOCHS
    repeat_epoch(tmp_path, 3)
    assert run(once(), spark) == ["skipped"]
    assert tally(expected(), found(tmp_path)).exact


class Judge(ts.state.Keyed):
    """Rules beside keyed state: how many readings a sensor had above its limit of the epoch."""

    output = "sensor string, above long, high long"
    above = ts.state.Value("long")

    def __init__(self, limits: ts.state.Broadcast) -> None:
        self.limits = limits

    def on_rows(self, key: tuple[Any, ...], rows: Iterator[Row], now: ts.state.Now) -> Iterator[tuple[Any, ...]]:
        rule = self.limits.get().get(key[0])
        high = None if rule is None else rule["high"]
        above = sum(1 for row in rows if high is not None and row["id"] > high)
        self.above.set((self.above.get() or 0) + above)
        yield key[0], self.above.get(), high


def test_rules_beside_keyed_state_and_in_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    sink = Memory(f"judge-{tmp_path.name}")
    sink.clear()

    def judged(folder: Path, epochs: int) -> ts.Job:
        limits = limits_of()
        declared = job(
            folder,
            limits,
            lambda readings: ts.state.keyed(readings, by="sensor", state=Judge(limits)),
            sink=sink,
            output_mode="update",
            spark_conf={},
        )
        declared.sources["collection"] = ts.sources.Collection(
            READINGS[: epochs * PER_EPOCH], per_epoch=PER_EPOCH, name="readings"
        )
        limits.source = ts.sources.Collection(LIMITS[:epochs], "name string, high long", per_epoch=1, name="limits")
        return declared

    run(judged(tmp_path, 2), spark)
    savepoint.create(tmp_path / "checkpoint", tmp_path / "kept")
    savepoint.restore(tmp_path / "kept", tmp_path / "again" / "checkpoint")
    run(judged(tmp_path / "again", EPOCHS), spark)
    above, told = {"s0": 0, "s1": 0}, []
    high: dict[str, int | None] = {}
    for epoch in range(EPOCHS):
        high[LIMITS[epoch]["name"]] = LIMITS[epoch]["high"]
        for sensor in above:
            limit = high.get(sensor)
            ids = [row["id"] for row in READINGS[epoch * 10 : epoch * 10 + 10] if row["sensor"] == sensor]
            above[sensor] += sum(1 for id_ in ids if limit is not None and id_ > limit)
            told.append((sensor, above[sensor], limit))
    assert tally(told, [(row["sensor"], row["above"], row["high"]) for row in sink.rows()]).exact


def test_rules_that_are_gone_from_the_journal_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    run(joined(tmp_path), spark)
    repeat_epoch(tmp_path, 3)
    [newest] = (tmp_path / "checkpoint" / "tallystick" / "rules").glob(f"{3:012d}.*")
    other = newest.read_bytes()
    newest.unlink()
    with pytest.raises(CheckpointError, match=r"epoch 3 was decided with the rules .*but they are now"):
        run(joined(tmp_path, other_limits(3)), spark)
    newest.unlink()
    (newest.parent / f"{2:012d}.limits.json").unlink()
    with pytest.raises(CheckpointError, match=r"not whole: by epoch 2 the control stream of 'limits' was read up to"):
        run(joined(tmp_path), spark)
    newest.write_bytes(other)
    assert run(joined(tmp_path), spark) == ["verified"]
    assert tally(expected(), found(tmp_path)).exact


def test_a_control_stream_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """More files than Spark keeps apart: their log is compacted on the way. The newer file wins, whatever its size."""
    (tmp_path / "limits").mkdir()
    for number in range(12):
        path = tmp_path / "limits" / f"{number:02d}.json"
        path.write_text(json.dumps({"name": "s0", "high": number}) + "\n" * (1 + 100 * (12 - number)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
    source = ts.sources.Files(
        tmp_path / "limits", format="json", schema="name string, high long", max_files_per_epoch=1
    )
    limits = ts.state.Broadcast("limits", source, key="name")
    run(job(tmp_path, limits, lambda readings: limits.join(readings, on="sensor")), spark)
    assert sorted(found(tmp_path)) == [(id_, id_ // PER_EPOCH) for id_ in range(0, EPOCHS * PER_EPOCH, 2)]
    kept = sorted(path.name for path in (tmp_path / "checkpoint" / "tallystick" / "rules").iterdir())
    assert len(kept) == 12
    newest = json.loads((tmp_path / "checkpoint" / "tallystick" / "rules" / kept[-1]).read_text())["body"]
    assert newest["rules"] == {'{"name":"s0"}': '{"name":"s0","high":11}'}


def test_rows_without_a_rule_can_stay_and_keys_can_have_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    control = ts.sources.Collection(
        [{"area": "a", "sensor": 1, "note": "one"}], "area string, sensor int, note string", name="notes"
    )
    notes = ts.state.Broadcast("notes", control, key=["area", "sensor"])

    def steps(readings: DataFrame) -> DataFrame:
        keyed = readings.selectExpr("id", "'a' as area", "cast(id % 2 as bigint) as place")
        return notes.join(keyed, on=["area", "place"], how="left").selectExpr("id", "note as high")

    run(job(tmp_path, notes, steps), spark)
    assert tally([(id_, "one" if id_ % 2 else None) for id_ in range(40)], found(tmp_path)).exact


@pytest.mark.slow
def test_rules_that_are_too_large_stop_the_job_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    from hashlib import sha512

    noise = [{"name": f"s{number}", "high": sha512(str(number).encode()).hexdigest()} for number in range(20_000)]

    def large(folder: Path, count: int) -> ts.Job:
        return declared(folder, ts.state.Broadcast("large", ts.sources.Collection(noise[:count]), key="name"))

    with pytest.raises(SourceError, match=r"'large' are [\d,]+ bytes packed \(20,000 rules\), at most 1,048,576"):
        run(large(tmp_path / "refused", 20_000), spark)
    assert not list((tmp_path / "refused" / "out").glob("*.json"))
    run(large(tmp_path, 8_000), spark)
    assert [high for id_, high in sorted(found(tmp_path)) if id_ < 2] == [row["high"] for row in noise[:2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: limits_of(key="nobody"), "limits has no column nobody to be its key: it has name, high"),
        (lambda: limits_of(remove="low is null"), "broadcast state limits cannot work"),
        (lambda: limits_of(key=[]), "key needs a column or several"),
        (lambda: limits_of(remove=" "), "remove needs a SQL condition"),
        (lambda: limits_of(steps="upper"), "steps is a function of a DataFrame"),
        (lambda: ts.state.Broadcast("a.b", ts.sources.Collection([{"a": 1}]), key="a"), "name is 'a.b'"),
        (lambda: ts.state.Broadcast("x", SOCKET, key="a"), "Socket cannot be a control stream"),
    ],
)
def test_what_cannot_work_is_refused(
    spark: SparkSession, tmp_path: Path, make: Callable[[], ts.state.Broadcast], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(tmp_path, make()).writer(spark)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (lambda limits, rows: limits.join(rows), "joined on name, which the rows do not have: they have id, sensor"),
        (lambda limits, rows: limits.join(rows, on="sensor", how="outer"), "how is 'outer'"),
        (lambda limits, rows: limits.join(rows.withColumnRenamed("id", "high"), on="sensor"), "both have high"),
        (lambda limits, rows: limits.join(rows, on=["sensor", "id"]), r"has the key \('name',\)"),
    ],
)
def test_a_join_that_cannot_work_is_refused(
    spark: SparkSession, tmp_path: Path, steps: Callable[..., DataFrame], message: str
) -> None:
    limits = limits_of()
    with pytest.raises(ConfigError, match=message):
        job(tmp_path, limits, lambda rows: steps(limits, rows)).writer(spark)


def test_a_query_that_is_written_with_rules(spark: SparkSession, tmp_path: Path) -> None:
    """`write_stream`, with a join before it: stopped after two epochs, and on from there with the rules of then."""

    def written(folder: Path, readings: list[dict[str, Any]], control: list[dict[str, Any]]) -> Any:
        limits = limits_of(control)
        rows = ts.sources.Collection(readings, per_epoch=PER_EPOCH, name="readings").load(spark)
        sink = ts.sinks.Files(folder / "out", format="json")
        return ts.write_stream(
            limits.join(rows, on="sensor"), sink, checkpoint=folder / "checkpoint", name="limits", broadcast=limits
        )

    for rows, control in ((READINGS[: 2 * PER_EPOCH], LIMITS[:2]), (READINGS, LIMITS)):
        query = written(tmp_path, rows, control).trigger(availableNow=True).start()
        query.awaitTermination()
    assert tally(expected(), found(tmp_path)).exact


@pytest.mark.slow
def test_a_query_that_is_not_told_of_its_rules_stops_in_its_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    query = ts.write_stream(
        limits_of().join(ts.sources.Collection(READINGS).load(spark), on="sensor"),
        Memory("without"),
        checkpoint=tmp_path / "without",
    ).start()
    with pytest.raises(StreamingQueryException, match=r"was it given to ts.Job\(broadcast=…\) or ts.write_stream"):
        query.awaitTermination()


def test_a_query_with_rules_that_cannot_work_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a streaming DataFrame"):
        ts.write_stream(spark.range(1), Memory("batch"), checkpoint=tmp_path / "batch", broadcast=limits_of())
    named = ts.state.Broadcast("source-0", ts.sources.Collection(LIMITS), key="name")
    loaded = ts.sources.Collection(READINGS).load(spark)
    with pytest.raises(ConfigError, match="'source-0' needs another name: a source of the query has it"):
        ts.write_stream(loaded, Memory("named"), checkpoint=tmp_path / "named", broadcast=named)


def test_a_broadcast_state_has_a_name_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names of their own, found limits twice"):
        job(tmp_path, limits_of(), lambda rows: rows).__class__(
            "twice",
            source={"limits": ts.sources.Collection([{"a": 1}])},
            broadcast=limits_of(),
            sink=ts.sinks.Files(tmp_path / "out"),
            checkpoint=tmp_path / "checkpoint",
        )
    with pytest.raises(ConfigError, match=r"broadcast needs ts\.state\.Broadcast"):
        job(tmp_path, "limits", lambda rows: rows)  # type: ignore[arg-type]
