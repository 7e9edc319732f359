"""The jobs in ``examples/``, run on a real broker: what came out is compared with what the lines that went in say.

The two that keep state are also killed, as ``tallystick run`` runs them, and finished by another driver.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from kafka_topics import make_topic, read_topic, wait_for_markers
from postgresql_tables import ask, new_table
from real_servers import Elsewhere
from tallystick.prover import JobProcess, tally
from tallystick.servers import Kafka as Broker
from tallystick.servers import PostgreSQL
from tallystick.spark.jobfile import find_jobs, load_file

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN_TIMEOUT_S = 150
LINES = 30_000
SEED = 7
AROUND_THE_DECISION = ("after-pre-commit@1", "before-decide@2", "after-decide@3", "inside-commit@4")
PARSED = re.compile(r"(\d+) (\S+) app_id=(\w+) (/page/\d+) (\d+)")


@dataclass(frozen=True)
class View:
    line: str
    at: datetime
    app: str
    page: str
    status: str


def parsed(line: str) -> View:
    """By other means than the examples."""
    match = PARSED.fullmatch(line)
    assert match is not None, line
    return View(line, datetime.fromisoformat(match[2].replace("Z", "+00:00")), match[3], match[4], match[5])


@dataclass(frozen=True)
class Fed:
    """A topic that was fed by ``examples/feed.py``, and the views in it by number."""

    address: str
    topic: str
    views: Sequence[View]


@pytest.fixture(scope="module")
def fed(kafka: Broker | Elsewhere) -> Fed:
    topic = make_topic(kafka.address, partitions=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KAFKA", kafka.address)
        feed = runpy.run_path(str(EXAMPLES / "feed.py"))
    feed["send"](topic, 0, LINES, 0, SEED)
    return Fed(kafka.address, topic, [parsed(feed["log_line"](number, SEED)) for number in range(LINES)])


@dataclass
class Example:
    """One example, in a folder of its own, with topics of its own."""

    name: str
    folder: Path
    environment: dict[str, str]

    def run(self, spark: SparkSession) -> dict[str, Any]:
        """To the end of the topic, in this process; returns the module's names."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment.items():
                patched.setenv(name, value)
            module = load_file(EXAMPLES / f"{self.name}.py")
        [job] = find_jobs(module).values()
        job.run(spark, available_now=True)
        wait_for_markers(self.environment["KAFKA"], "tallystick")
        return vars(module)

    def killed(self, point: str) -> None:
        """As a person runs it, and as a machine loses its power."""
        file = str(EXAMPLES / f"{self.name}.py")
        arguments = ["-m", "tallystick", "run", file, "--available-now", "--master", "local[2]"]
        process = JobProcess(arguments, self.folder / "log", point, self.environment)
        try:
            ended = process.wait(RUN_TIMEOUT_S)
        finally:
            process.kill()
        assert ended.killed, f"{point} was not reached:\n{process.tail()}"

    def committed(self, name: str) -> list[tuple[str, str]]:
        """Key and value of what a reader of the topic in this variable finds."""
        records = read_topic(self.environment["KAFKA"], self.environment[name])
        return [((record.key or b"").decode(), (record.value or b"").decode()) for record in records]


def example(name: str, fed: Fed, folder: Path, *topics: str) -> Example:
    made = {topic: make_topic(fed.address) for topic in topics}
    environment = {"KAFKA": fed.address, "LINES": fed.topic, "WORK": str(folder / "work"), **made}
    return Example(name, folder, environment)


def test_passthrough(spark: SparkSession, fed: Fed, tmp_path: Path) -> None:
    passthrough = example("kafka_passthrough", fed, tmp_path, "COPY")
    passthrough.run(spark)
    assert tally([("", view.line) for view in fed.views], passthrough.committed("COPY")).exact


def test_two_topics_and_a_file(spark: SparkSession, fed: Fed, tmp_path: Path) -> None:
    several = example("two_topics_and_a_file", fed, tmp_path, "VIEWS", "ALARMS")
    several.run(spark)
    alarms = [view for view in fed.views if view.status == "500"]
    views = [view for view in fed.views if view.status != "500"]
    assert alarms
    assert views
    assert tally([(view.app, view.line) for view in alarms], several.committed("ALARMS")).exact
    found = [(key, tuple(json.loads(value).values())) for key, value in several.committed("VIEWS")]
    assert tally([(view.app, (view.app, view.page, view.status)) for view in views], found).exact
    archive = ds.dataset(tmp_path / "work" / "archive", partitioning="hive").to_table(columns=["line", "app_id"])
    rows = [(row["line"], row["app_id"]) for row in archive.to_pylist()]
    assert tally([(view.line, view.app) for view in fed.views], rows).exact


def running_counts(views: Sequence[View], per_epoch: int) -> Iterator[tuple[str, str]]:
    """After each epoch the new count of every app in it."""
    counts: Counter[str] = Counter()
    for start in range(0, len(views), per_epoch):
        epoch = Counter(view.app for view in views[start : start + per_epoch])
        counts += epoch
        yield from ((app, str(counts[app])) for app in epoch)


def test_app_pv_count_killed_half_published(spark: SparkSession, fed: Fed, tmp_path: Path) -> None:
    pv = example("app_pv_count", fed, tmp_path, "COUNTS")
    pv.killed("inside-commit@1")
    module = pv.run(spark)
    found = pv.committed("COUNTS")
    assert tally(running_counts(fed.views, module["PER_EPOCH"]), found).exact
    latest = {app: max(int(value) for key, value in found if key == app) for app, _ in found}
    assert latest == Counter(view.app for view in fed.views)


def closed_windows(views: Sequence[View]) -> Counter[tuple[str, int]]:
    """The minutes that end before the newest line, less the ten seconds for which late lines are waited for."""
    watermark_s = max(view.at for view in views).timestamp() - 10
    minutes = Counter((view.app, int(view.at.timestamp()) // 60 * 60) for view in views)
    return Counter({place: count for place, count in minutes.items() if place[1] + 60 <= watermark_s})


def test_window_count_killed_before_its_decision(spark: SparkSession, fed: Fed, tmp_path: Path) -> None:
    windows = example("kafka_window_count", fed, tmp_path, "WINDOWS")
    windows.killed("after-pre-commit@1")
    windows.run(spark)
    found = [(key, json.loads(value)) for key, value in windows.committed("WINDOWS")]
    counted = [(key, row["minute_ms"] // 1000, row["pv"]) for key, row in found]
    expected = closed_windows(fed.views)
    assert len(expected) > 10
    assert tally([(app, minute, pv) for (app, minute), pv in expected.items()], counted).exact


@pytest.mark.parametrize(
    "kills",
    [("inside-commit@1",), pytest.param(AROUND_THE_DECISION, marks=pytest.mark.slow)],
    ids=["one-is-committed-and-the-other-is-not", "around-the-decision"],
)
def test_order_and_event_killed(
    spark: SparkSession, fed: Fed, postgresql: PostgreSQL, tmp_path: Path, kills: Sequence[str]
) -> None:
    both, count = example("order_and_event", fed, tmp_path, "EVENTS"), 1000
    both.environment |= {"POSTGRESQL": postgresql.address, "ORDERS": new_table(), "COUNT": str(count)}
    for kill in kills:
        both.killed(kill)
    module = both.run(spark)
    orders = [module["order"](number) for number in range(count)]
    rows = ask(postgresql.address, f"SELECT id, customer, cents FROM {both.environment['ORDERS']}")
    assert tally([tuple(one.values()) for one in orders], rows).exact
    events = [(key, *json.loads(value).values()) for key, value in both.committed("EVENTS")]
    assert tally([(one["customer"], "ordered", one["id"], one["cents"]) for one in orders], events).exact


def test_orders_with_dead_letters(spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path) -> None:
    table, count = new_table(), 1000
    environment = {"POSTGRESQL": postgresql.address, "ORDERS": table, "COUNT": str(count), "WORK": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        module = load_file(EXAMPLES / "orders_with_dead_letters.py")
    ask(postgresql.address, module.TABLE)
    module.job.run(spark, available_now=True)
    lines = [line for path in (tmp_path / "refused-orders").glob("*.json") for line in path.read_text().splitlines()]
    letters = [json.loads(json.loads(line)["row"]) for line in lines]
    rows = ask(postgresql.address, f"SELECT id, customer, cents FROM {table}")
    orders = [module.order(number) for number in range(count)]
    found = [("kept", *row) for row in rows] + [("refused", *letter.values()) for letter in letters]
    bad = [one["customer"] is None or int(str(one["cents"])) < 0 for one in orders]
    expected = [("refused" if wrong else "kept", *one.values()) for wrong, one in zip(bad, orders, strict=True)]
    assert tally(expected, found).exact
    assert sum(bad) == 10
