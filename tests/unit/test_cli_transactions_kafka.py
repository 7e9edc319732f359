"""``tallystick transactions`` on a job that writes to a real Kafka: what is open is shown, and ended by hand."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cli_runner import Tally, commit, finish, new_checkpoint
from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.kafka.transactions import Answer, Ending
from tallystick.records import Attempt, Decision, Fingerprint, Vote
from tallystick.servers import Kafka as Broker
from tallystick.sinks import JobContext, Kafka, SliceContext

JOB = """
import tallystick as ts

job = ts.Job(
    "pv",
    source=ts.sources.Collection([{{"value": "1"}}]),
    sink=ts.sinks.Kafka({servers!r}, {topic!r}),
    checkpoint={checkpoint!r},
)
"""


class Stopped:
    """A job that died: its checkpoint, its job file, and what it has left open at the broker."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.checkpoint, self.file = address, folder / "checkpoint", folder / "app.py"
        self.topic = make_topic(address, 1)
        self.journal = new_checkpoint(self.checkpoint)
        self.sink = Kafka(address, self.topic)
        self.sink.check(JobContext())
        self.file.write_text(JOB.format(servers=address, topic=self.topic, checkpoint=str(self.checkpoint)))

    @property
    def job_id(self) -> str:
        return self.journal.identify(None).id

    def prepared(self, attempt: Attempt, slice_: int, value: str, sealed: bool = True) -> Vote:
        """A slice that a task has written, and pre-committed if it is sealed.

        The newest attempt comes first in a test: to a worker all names of earlier ones are settled and free.
        """
        opened = self.sink.begin_transaction(SliceContext(self.job_id, attempt, "kafka", slice_, slice_))
        self.sink.write(opened, pa.RecordBatch.from_pydict({"value": pa.array([value.encode()], pa.binary())}))
        opened.producer.wait()
        return Vote("kafka", slice_, Fingerprint(1, 1), self.sink.pre_commit(opened) if sealed else None)

    def read(self) -> list[bytes | None]:
        wait_for_markers(self.address, self.sink.prefix(self.job_id), self.sink.driver.transactions)
        return [record.value for record in read_topic(self.address, self.topic)]


@pytest.fixture
def stopped(kafka: Broker | Elsewhere, tmp_path: Path) -> Iterator[Stopped]:
    made = Stopped(kafka.address, tmp_path)
    yield made
    for found in made.sink.open_transactions(made.job_id):
        made.sink.abort(found.committable)


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def test_what_is_open_is_listed_with_what_becomes_of_it(tally: Tally, stopped: Stopped) -> None:
    stopped.prepared(Attempt(4, 2), 5, "undecided")
    stopped.prepared(Attempt(4, 2), 6, "begun", sealed=False)
    decided = stopped.prepared(Attempt(3, 1), 0, "decided")
    stopped.prepared(Attempt(3, 1), 1, "second try")
    stopped.journal.put(commit(3, 1, decided))
    finish(stopped.checkpoint, 2)
    arguments = ("transactions", "list", stopped.checkpoint, "--job", stopped.file)
    entries = tally(*arguments, "--json").json
    assert [(one["epoch"], one["generation"], one["slice"], one["state"], one["next"]) for one in entries] == [
        (3, 1, 0, "pre-committed", "is committed"),
        (3, 1, 1, "pre-committed", "is rolled back"),
        (4, 2, 5, "pre-committed", "is rolled back"),
        (4, 2, 6, "begun", "is rolled back"),
    ]
    for entry in entries:
        assert entry["sink"] == "kafka"
        assert entry["name"].startswith(f"tallystick/{stopped.job_id}/{stopped.topic}/")
        assert 0 <= entry["age_s"] < 60
    shown = tally(*arguments)
    assert shown.status == 0
    assert decided.committable["name"] in shown.out


def test_the_journal_alone_shows_the_same_name(tally: Tally, stopped: Stopped) -> None:
    decided = stopped.prepared(Attempt(3, 1), 0, "decided")
    stopped.journal.put(commit(3, 1, decided))
    [entry] = tally("transactions", "list", stopped.checkpoint, "--json").json
    assert (entry["state"], entry["name"]) == ("in doubt", decided.committable["name"])


def test_decided_ones_are_committed_and_others_rolled_back(tally: Tally, stopped: Stopped) -> None:
    stopped.prepared(Attempt(4, 2), 0, "undecided")
    stopped.journal.put(commit(3, 1, stopped.prepared(Attempt(3, 1), 0, "decided")))
    stopped.prepared(Attempt(3, 1), 1, "second try")
    arguments = ("transactions", "resolve", stopped.checkpoint, "--end", "--job", stopped.file, "--yes", "--json")
    ran = tally(*arguments)
    assert ran.status == 0
    assert [(one["epoch"], one["generation"], one["slice"], one["ended"]) for one in ran.json] == [
        (3, 1, 0, "committed"),
        (3, 1, 1, "rolled back"),
        (4, 2, 0, "rolled back"),
    ]
    assert stopped.read() == [b"decided"]
    [aborted] = stopped.journal.records(4)
    assert (aborted.decision, aborted.reason) == (Decision.ABORT, "rolled back by hand")
    assert [one["ended"] for one in tally(*arguments).json] == ["committed"], "Spark has not logged epoch 3 yet"
    assert stopped.read() == [b"decided"]


def test_one_epoch_only(tally: Tally, stopped: Stopped) -> None:
    stopped.prepared(Attempt(4, 2), 0, "four")
    stopped.prepared(Attempt(3, 1), 0, "three")
    ran = tally("transactions", "resolve", stopped.checkpoint, "4", "--end", "--job", stopped.file, "--yes", "--json")
    assert [one["epoch"] for one in ran.json] == [4]
    assert [found.attempt for found in stopped.sink.open_transactions(stopped.job_id)] == [Attempt(3, 1)]


def test_what_expired_is_said_and_left_to_the_next_start(tally: Tally, stopped: Stopped) -> None:
    vote = stopped.prepared(Attempt(3, 1), 0, "decided")
    stopped.journal.put(commit(3, 1, vote))
    producer_id, producer_epoch = vote.committable["producer"]
    ending = Ending(vote.committable["name"], producer_id, producer_epoch, commit=False)
    assert stopped.sink.driver.transactions.end_soon([ending]) == [Answer.DONE]
    ran = tally("transactions", "resolve", stopped.checkpoint, "--end", "--job", stopped.file, "--yes")
    assert ran.status == 0
    assert "expired" in ran.out
    assert "the next start of the job writes them again" in ran.out
    assert len(stopped.journal.records()) == 1, "no decision is changed"


def test_a_living_driver_is_left_alone_unless_forced(tally: Tally, stopped: Stopped) -> None:
    stopped.prepared(Attempt(4, 1), 0, "at work")
    driver = Journal(PosixStore(stopped.checkpoint / "tallystick"))
    assert driver.store.try_lock()
    arguments = ("transactions", "resolve", stopped.checkpoint, "--end", "--job", stopped.file, "--yes")
    try:
        ran = tally(*arguments)
        assert ran.status == 1
        assert "a living driver holds" in ran.err
        assert len(list(stopped.sink.open_transactions(stopped.job_id))) == 1
        assert not stopped.journal.records()
        assert tally(*arguments, "--force").status == 0
        assert not list(stopped.sink.open_transactions(stopped.job_id))
        standing = driver.put(commit(4, 1))
        assert standing.decision is Decision.ABORT, "the driver finds this where it wants to decide, and stops"
    finally:
        driver.store.unlock()


def test_nobody_is_asked_through_a_pipe(tally: Tally, stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.prepared(Attempt(4, 1), 0, "undecided")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ran = tally("transactions", "resolve", stopped.checkpoint, "--end", "--job", stopped.file)
    assert ran.status == 1
    assert "--yes" in ran.err
    assert "is rolled back" in ran.err
    assert not stopped.journal.records()


def test_options_that_do_not_go_together(tally: Tally, stopped: Stopped) -> None:
    for options in (["--end"], ["--end", "--rewrite"], ["--abandon"], ["4", "--abandon", "--force"]):
        assert tally("transactions", "resolve", stopped.checkpoint, *options, "--yes").status == 2
