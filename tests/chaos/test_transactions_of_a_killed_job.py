"""``tallystick transactions`` after a job was really killed: what it left prepared in PostgreSQL is shown and ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from killed_job import RUN_TIMEOUT_S

from cli_runner import Tally
from postgresql_tables import ask, prepared
from tallystick.prover import JobProcess, tally
from tallystick.servers import PostgreSQL

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 120
JOB = """
import tallystick as ts

job = ts.Job(
    "killed",
    source=ts.sources.Collection(lambda n: {{"id": n}}, length={rows}, schema="id long", per_epoch=40),
    sink=ts.sinks.PostgreSQL({address!r}, {table!r}),
    checkpoint=ts.Checkpoint({checkpoint!r}, interval="0s"),
)
"""


def run(file: Path, kill: str | None = None) -> None:
    arguments = ["-m", "tallystick", "run", str(file), "--available-now", "--master", "local[2]"]
    process = JobProcess(arguments, file.with_suffix(".log"), kill)
    try:
        ended = process.wait(RUN_TIMEOUT_S)
    finally:
        process.kill()
    assert ended.killed if kill else ended.status == 0, process.tail()


@pytest.mark.parametrize(
    ("kill", "ending", "there"),
    [("before-decide@1", "rolled back", 40), ("after-decide@1", "committed", 80)],
    ids=["not-decided", "decided"],
)
def test_they_are_listed_and_settling_ends_them(
    postgresql: PostgreSQL, tmp_path: Path, capsys: pytest.CaptureFixture[str], kill: str, ending: str, there: int
) -> None:
    table, file, checkpoint = f"killed_{kill.split('-')[0]}", tmp_path / "app.py", tmp_path / "checkpoint"
    ask(postgresql.address, f"CREATE TABLE {table} (id bigint)")
    file.write_text(JOB.format(rows=ROWS, address=postgresql.address, table=table, checkpoint=str(checkpoint)))
    run(file, kill)
    typed = Tally(capsys)
    listed = typed("transactions", "list", checkpoint, "--job", file, "--json").json
    assert [(one["epoch"], one["slice"], one["state"], one["next"]) for one in listed] == [
        (1, number, "pre-committed", f"is {ending}") for number in (0, 1)
    ]
    assert [one["name"] for one in listed] == prepared(postgresql.address)
    ended = typed("transactions", "resolve", checkpoint, "--end", "--job", file, "--yes", "--json")
    assert ended.status == 0, ended.err
    assert [one["ended"] for one in ended.json] == [ending, ending]
    assert prepared(postgresql.address) == []
    assert ask(postgresql.address, f"SELECT count(*) FROM {table}") == [(there,)]
    run(file)
    found = [number for (number,) in ask(postgresql.address, f"SELECT id FROM {table}")]
    assert tally(range(ROWS), found).exact
    assert prepared(postgresql.address) == []
    print(f"\n{kill}: 1 kill, 2 prepared transactions {ending} by settling", file=sys.stderr)
