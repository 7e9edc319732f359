"""``tallystick transactions`` on a job that died with transactions prepared in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cli_runner import Tally, commit, finish, new_checkpoint
from postgresql_tables import ask, new_table, prepared, staged
from tallystick.records import Attempt, Decision, Fingerprint, Vote
from tallystick.servers import PostgreSQL as Server
from tallystick.sinks import JobContext, PostgreSQL, SliceContext

JOB = """
import tallystick as ts

job = ts.Job(
    "pv",
    source=ts.sources.Collection([{{"id": 1}}]),
    sink=ts.sinks.PostgreSQL({address!r}, {table!r}, via={via!r}),
    checkpoint={checkpoint!r},
)
"""


class Stopped:
    """A job that died: its checkpoint, its job file, and what it has left in the database."""

    def __init__(self, address: str, folder: Path, via: str) -> None:
        self.address, self.checkpoint, self.file, self.table = (
            address,
            folder / "checkpoint",
            folder / "app.py",
            new_table(),
        )
        ask(address, f"CREATE TABLE {self.table} (id bigint)")
        self.journal = new_checkpoint(self.checkpoint)
        self.sink = PostgreSQL(address, self.table, via=via)
        self.sink.check(JobContext())
        text = JOB.format(address=address, table=self.table, via=via, checkpoint=str(self.checkpoint))
        self.file.write_text(text)

    @property
    def job_id(self) -> str:
        return self.journal.identify(None).id

    def prepared(self, attempt: Attempt, slice_: int, number: int) -> Vote:
        opened = self.sink.begin_transaction(SliceContext(self.job_id, attempt, "postgresql", slice_, slice_))
        self.sink.write(opened, pa.RecordBatch.from_pydict({"id": [number]}))
        return Vote("postgresql", slice_, Fingerprint(1, 1), self.sink.pre_commit(opened))

    def read(self) -> list[int]:
        return [number for (number,) in ask(self.address, f"SELECT id FROM {self.table} ORDER BY 1")]

    def left(self) -> list[str]:
        prefix = self.sink.prefix(self.job_id)
        return [*prepared(self.address, prefix), *staged(self.address, prefix)]


@pytest.fixture(params=["prepared", "staged"])
def stopped(request: pytest.FixtureRequest, postgresql: Server, tmp_path: Path) -> Iterator[Stopped]:
    made = Stopped(postgresql.address, tmp_path, request.param)
    yield made
    for found in made.sink.open_transactions(made.job_id):
        made.sink.abort(found.committable)


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def test_what_is_prepared_is_listed_with_what_becomes_of_it(tally: Tally, stopped: Stopped) -> None:
    decided = stopped.prepared(Attempt(3, 1), 0, 30)
    stopped.prepared(Attempt(3, 1), 1, 31)
    stopped.prepared(Attempt(4, 2), 5, 45)
    stopped.journal.put(commit(3, 1, decided))
    finish(stopped.checkpoint, 2)
    arguments = ("transactions", "list", stopped.checkpoint, "--job", stopped.file)
    entries = tally(*arguments, "--json").json
    assert [(one["epoch"], one["generation"], one["slice"], one["state"], one["next"]) for one in entries] == [
        (3, 1, 0, "pre-committed", "is committed"),
        (3, 1, 1, "pre-committed", "is rolled back"),
        (4, 2, 5, "pre-committed", "is rolled back"),
    ]
    assert [one["name"] for one in entries] == sorted(stopped.left())
    assert decided.committable["name"] in tally(*arguments).out


def test_a_session_that_writes_is_listed_as_begun(tally: Tally, stopped: Stopped) -> None:
    opened = stopped.sink.begin_transaction(SliceContext(stopped.job_id, Attempt(4, 1), "postgresql", 7, 7))
    stopped.sink.write(opened, pa.RecordBatch.from_pydict({"id": [1]}))
    [entry] = tally("transactions", "list", stopped.checkpoint, "--job", stopped.file, "--json").json
    assert (entry["state"], entry["slice"], entry["next"]) == ("begun", 7, "is rolled back")
    stopped.sink.rollback(opened)


def test_settling_ends_them(tally: Tally, stopped: Stopped) -> None:
    stopped.journal.put(commit(3, 1, stopped.prepared(Attempt(3, 1), 0, 30)))
    stopped.prepared(Attempt(3, 1), 1, 31)
    stopped.prepared(Attempt(4, 2), 0, 40)
    assert len(stopped.left()) == 3
    arguments = ("transactions", "resolve", stopped.checkpoint, "--end", "--job", stopped.file, "--yes", "--json")
    ran = tally(*arguments)
    assert ran.status == 0
    assert [(one["epoch"], one["slice"], one["ended"]) for one in ran.json] == [
        (3, 0, "committed"),
        (3, 1, "rolled back"),
        (4, 0, "rolled back"),
    ]
    assert stopped.left() == []
    assert stopped.read() == [30]
    [aborted] = stopped.journal.records(4)
    assert aborted.decision is Decision.ABORT
    assert [one["ended"] for one in tally(*arguments).json] == ["committed"], "Spark has not logged epoch 3 yet"
    assert stopped.read() == [30]
