"""Kill jobs that write to Cassandra, OpenSearch, Kinesis and a socket at every point of the protocol, and count.

Run K is killed at point K of epoch K+1 and the next run takes over. Cassandra and OpenSearch are in one job, decided
together: each kill hits both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from applied_pipeline import Plan, expected, record
from killed_job import RUN_TIMEOUT_S, KilledJob, epochs_for, note, until
from kills import IN_SHORT, KILLS, MATRIX

from cassandra_tables import ask, new_table
from kinesis_streams import new_stream, read_shards, without_repeats
from line_receiver import LineReceiver
from real_servers import Elsewhere, started
from search_indices import documents, new_index
from tallystick.killpoints import POINTS
from tallystick.prover import tally
from tallystick.servers import Cassandra, Kinesis, OpenSearch

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def upserts(cassandra: str, opensearch: str, folder: Path, epochs: int) -> Plan:
    return Plan(
        str(folder),
        "upserts",
        epochs,
        cassandra=cassandra,
        latest_table=new_table(cassandra, "key text PRIMARY KEY, count bigint"),
        history_table=new_table(cassandra, "key text, count bigint, PRIMARY KEY (key, count)"),
        opensearch=opensearch,
        latest_index=new_index(opensearch),
        history_index=new_index(opensearch),
    )


class Applied(KilledJob):
    pipeline = "applied_pipeline.py"

    def __init__(self, plan: Plan) -> None:
        super().__init__(Path(plan.folder))
        self.plan = plan

    def arguments(self) -> list[str]:
        return [self.plan.to_json()]


def assert_exactly_once(plan: Plan, kills: int = 0) -> None:
    updates = expected(plan.epochs)
    in_table = ask(plan.cassandra, f"SELECT key, count FROM {plan.history_table}")
    in_index = [(row["key"], row["count"]) for _, row in documents(plan.opensearch, plan.history_index)]
    counted = {"cassandra": tally(updates, in_table), "opensearch": tally(updates, in_index)}
    if kills:
        note(kills, ["collection"], counted)
    for where, found in counted.items():
        print(f"\n{where}: {found}")
        assert found.exact, found
    latest = dict(updates)
    assert dict(ask(plan.cassandra, f"SELECT key, count FROM {plan.latest_table}")) == latest
    assert {id_: row["count"] for id_, row in documents(plan.opensearch, plan.latest_index)} == latest


def test_the_matrix_has_every_kill_point() -> None:
    assert {kill.split("@")[0] for kills in KILLS.values() for kill in kills} == set(POINTS)


@pytest.mark.parametrize("where", IN_SHORT)
def test_exactly_once_neither_loses_nor_repeats_at_any_point(
    cassandra: Cassandra | Elsewhere, opensearch: OpenSearch | Elsewhere, tmp_path: Path, where: str
) -> None:
    plan = upserts(cassandra.address, opensearch.address, tmp_path / "job", epochs_for(MATRIX[where]))
    Applied(plan).killed_at_each(MATRIX[where])
    assert_exactly_once(plan, len(MATRIX[where]))


def test_workers_that_die_while_they_apply_are_no_harm(
    cassandra: Cassandra | Elsewhere, opensearch: OpenSearch | Elsewhere, tmp_path: Path
) -> None:
    """They die when the rows are written and nobody knows: the slices are applied once more, by the same driver."""
    plan = replace(upserts(cassandra.address, opensearch.address, tmp_path / "job", 3), dies=1)
    Applied(plan).run()
    assert {path.name for path in Path(plan.folder).glob("died-*")} == {"died-cassandra", "died-opensearch"}
    assert_exactly_once(plan)


def test_what_a_driver_that_was_taken_for_dead_applies_late_changes_nothing(
    cassandra: Cassandra | Elsewhere, opensearch: OpenSearch | Elsewhere, tmp_path: Path
) -> None:
    """A worker of the first driver is held before it applies epoch 1. A second driver takes over, applies that epoch
    and all that follow; then the first one's worker writes what it holds. The lock of the checkpoint is taken away, as
    where a file system has no locks."""
    plan = upserts(cassandra.address, opensearch.address, tmp_path / "job", 5)
    with Applied(replace(plan, held=1)).running() as zombie:
        until(Path(plan.folder, "held").exists, "a worker to be held", zombie, RUN_TIMEOUT_S)
        (Path(plan.folder) / "checkpoint" / "tallystick" / "lock").unlink()
        Applied(plan).run()
        assert_exactly_once(plan)
        stamps = ask(plan.cassandra, f"SELECT key, count, writetime(count) FROM {plan.latest_table}")
        Path(plan.folder, "go").touch()
        ended = zombie.wait(RUN_TIMEOUT_S)
        assert ended.status != 0, "the first driver was to stop itself"
        assert Path(plan.folder, "applied-late").exists(), "nothing was written late"
    assert ask(plan.cassandra, f"SELECT key, count, writetime(count) FROM {plan.latest_table}") == stamps
    assert_exactly_once(plan)


@pytest.mark.slow  # in make test PostgreSQL and Redis die so
def test_both_servers_die_and_come_back_in_the_middle(tmp_path: Path) -> None:
    """They die when the first epochs are there, while the job runs on; it may start its query anew."""
    with started(Cassandra(tmp_path / "c")) as table_server, started(OpenSearch(tmp_path / "o")) as index_server:
        plan = replace(upserts(table_server.address, index_server.address, tmp_path / "job", 12), restarts=20)
        with Applied(plan).running() as process:
            rows = f"SELECT key FROM {plan.latest_table}"
            until(lambda: len(ask(plan.cassandra, rows)) > 0, "the first rows", process, RUN_TIMEOUT_S)
            table_server.kill()
            index_server.kill()
            time.sleep(2)
            assert process.running(), process.tail()
            table_server.start()
            index_server.start()
            assert process.wait(RUN_TIMEOUT_S).status == 0, process.tail()
        assert_exactly_once(plan)


# -- at-least-once -----------------------------------------------------------------------------------------------------

SENDS_KILLS = ("after-decide@1", "inside-commit@2", "before-return@3")
EVERY_KILL = tuple(KILLS["driver"]), tuple(KILLS["worker"])


@pytest.mark.parametrize("kills", [SENDS_KILLS, *(pytest.param(kills, marks=pytest.mark.slow) for kills in EVERY_KILL)])
def test_what_is_sent_is_never_lost_and_readers_can_drop_the_repeats(
    kinesis: Kinesis | Elsewhere, tmp_path: Path, kills: Sequence[str]
) -> None:
    receiver = LineReceiver()
    stream = new_stream(kinesis.address)
    with receiver.listening():
        plan = Plan(
            str(tmp_path / "job"),
            "sends",
            epochs_for(kills),
            kinesis=kinesis.address,
            stream=stream,
            port=receiver.port,
        )
        Applied(plan).killed_at_each(kills)
    sent = [str(record(number)["id"]) for number in range(plan.epochs * 40)]
    shards = read_shards(kinesis.address, stream)
    streamed = tally(sent, [entry["Data"].decode() for shard in shards for entry in shard])
    deduped = tally(sent, [entry["Data"].decode() for entry in without_repeats(shards)])
    received = tally(sent, [json.loads(row)["value"] for row in receiver.rows])
    print(f"\n{len(kills)} kills: kinesis {streamed}, its source {deduped}, socket {received}")
    note(len(kills), [], {"kinesis": streamed, "socket": received})
    assert streamed.lost == streamed.phantom == received.lost == received.phantom == 0
    assert deduped.exact, deduped
    if kills == SENDS_KILLS:
        assert streamed.repeated > 0, "a test that shows no repeats proves nothing about the marks"
        assert received.repeated > 0
