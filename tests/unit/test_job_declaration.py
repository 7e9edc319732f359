"""Whatever is wrong with a declaration is told when it is declared, in words, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from tallystick.errors import ConfigError, ForeignCheckpointError, JournalCorruptError, NewerCheckpointError
from tallystick.guarantees import SourceFacts
from tallystick.journal import Journal, MemoryStore
from tallystick.journal.posix import PosixStore
from tallystick.records import Attempt, Decision, Mode, Record
from tallystick.sinks.memory import Memory
from tallystick.spark.outputs import outputs_of
from tallystick.spark.stream import StreamWriter, _location, _staging


def numbers() -> ts.sources.Collection:
    return ts.sources.Collection([{"id": number} for number in range(4)], per_epoch=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, which must be empty at the end as well."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.rglob("*")) == [], "nothing may be written"


def declare(name: Any = "pv", **settings: Any) -> ts.Job:
    complete = {"source": numbers(), "sink": ts.sinks.Files("out"), "checkpoint": "ck", **settings}
    return ts.Job(name, **complete)


def test_a_complete_declaration_writes_nothing_either(folder: Path) -> None:
    job = declare()
    assert job.explanation.holds
    assert job.mode is Mode.EXACTLY_ONCE
    assert job.checkpoint.uri == "ck"
    assert [output.name for output in job.outputs] == ["files"]


class Losing(ts.sources.Collection):
    facts = SourceFacts("losing", Mode.AT_MOST_ONCE, "what nobody reads in time is gone")


def two(rows: Any, others: Any) -> Any:
    return rows.union(others)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "name with a space": ({"name": "my job"}, r"job name 'my job' is not usable: letters, digits"),
    "name that climbs": ({"name": "../x"}, r"job name '../x' is not usable"),
    "empty name": ({"name": ""}, "job name '' is not usable"),
    "name of a wrong type": ({"name": 5}, "job name 5 is not usable"),
    "no source": ({"source": {}}, "at least one source, found none"),
    "None as source": ({"source": None}, r"needs a source such as ts\.sources\.Files.*found None"),
    "path as source": ({"source": "in"}, r"needs a source such as .*found 'in'"),
    "list of sources": ({"source": [1]}, r"needs a source such as .*several by name"),
    "a number by name": ({"source": {"a": 5}}, r"source 'a' is a int: needed a source such as"),
    "a name that is no text": ({"source": {5: numbers()}}, "a source needs a name, found 5"),
    "no sink": ({"sink": []}, "at least one sink, found none"),
    "None as sink": ({"sink": None}, r"needs a sink such as ts\.sinks\.Files.*found None"),
    "path as sink": ({"sink": "out"}, "needs a sink such as .*found 'out'"),
    "class as sink": ({"sink": ts.sinks.Files}, "needs a sink such as .*found <class"),
    "a path among sinks": ({"sink": [ts.sinks.Files("a"), "b"]}, "an output needs a sink, found str"),
    "two outputs of one name": (
        {"sink": [ts.Output(ts.sinks.Files("a"), "x"), ts.Output(ts.sinks.Files("b"), "x")]},
        "two outputs are called 'x': each needs a name of its own",
    ),
    "dead letters that are no sink": ({"dead_letters": "bad"}, "dead_letters needs a sink such as .*, found str"),
    "dead letters where rows go": (
        {"sink": ts.sinks.Files("a"), "dead_letters": ts.sinks.Files("a")},
        r"dead_letters is file:.*/a, where another output writes",
    ),
    "dead letters as csv": ({"dead_letters": ts.sinks.Files("bad", format="csv")}, "use parquet, orc or json"),
    "an output called dead-letters": (
        {"sink": ts.Output(ts.sinks.Files("out"), "dead-letters"), "dead_letters": ts.sinks.Files("bad")},
        "which is the name of the one for refused rows: rename it",
    ),
    "dead letters that may repeat": ({"dead_letters": ts.sinks.Stdout()}, "the sink dead-letters is at-least-once"),
    "two outputs to one target": (
        {"sink": [ts.sinks.Files("a"), ts.Output(ts.sinks.Files("a"), "other")]},
        r"two outputs write to file:.*/a.*give each a target of its own",
    ),
    "None as checkpoint": ({"checkpoint": None}, "checkpoint location is a path or URI, found NoneType"),
    "empty checkpoint": ({"checkpoint": ""}, "needs a location of its own, found ''"),
    "steps that cannot be called": (
        {"steps": "select"},
        "steps is a function from DataFrames to a DataFrame, found str",
    ),
    "steps with too many arguments": (
        {"steps": two},
        r"one DataFrame per source, in the order collection: missing.*'others'",
    ),
    "steps with too few": ({"steps": lambda: None}, "one DataFrame per source.*too many positional arguments"),
    "two sources without steps": (
        {"source": {"a": numbers(), "b": numbers()}},
        "a job with 2 sources needs steps that bring them together, found none",
    ),
    "unknown output mode": (
        {"output_mode": "replace"},
        "output mode 'replace' is unknown: needed one of append, update",
    ),
    "output mode of a wrong type": ({"output_mode": None}, "output mode None is unknown"),
    "restart of a wrong type": ({"restart": "always"}, r"needs a strategy such as ts\.FixedDelay\(\), found str"),
    "restart as a class": ({"restart": ts.FixedDelay}, r"needs a strategy such as ts\.FixedDelay\(\)"),
    "unknown guarantee": (
        {"guarantee": "twice"},
        "'twice' is unknown: needed one of exactly-once, at-least-once, at-most",
    ),
    "guarantee of a wrong type": ({"guarantee": None}, "guarantee None is unknown"),
    "spark_conf of a wrong type": ({"spark_conf": "a=b"}, "spark_conf needs settings by name, found str"),
    "a sink that may repeat": (
        {"sink": ts.sinks.Stdout()},
        r'job pv: exactly-once cannot hold: the sink stdout is at-least-once.*guarantee="at-least-once"',
    ),
    "a sink that may repeat, at most once": (
        {"sink": ts.sinks.Stdout(), "guarantee": "at-most-once"},
        "at-most-once cannot hold: the sink stdout is at-least-once",
    ),
    "a source that may lose": (
        {"source": Losing([{"id": 1}])},
        r'exactly-once cannot hold: the source losing is at-most-once.*guarantee="at-most-once"',
    ),
    "a source that may lose, at least once": (
        {"source": Losing([{"id": 1}]), "guarantee": "at-least-once"},
        "at-least-once cannot hold: the source losing",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_declarations(folder: Path, case: str) -> None:
    settings, text = WRONG[case]
    with pytest.raises(ConfigError, match=text):
        declare(**settings)


def test_a_refused_guarantee_brings_its_explanation() -> None:
    with pytest.raises(ConfigError) as caught:
        declare(sink=[ts.sinks.Files("a"), ts.sinks.Stdout()])
    plan = caught.value.details["explanation"]
    assert [finding["rule"] for finding in plan["findings"]] == ["sink-may-repeat"]
    assert plan["guarantee"] == "at-least-once"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once", "at-most-once", Mode.EXACTLY_ONCE])
def test_guarantees_that_hold(folder: Path, guarantee: Any) -> None:
    assert declare(guarantee=guarantee).mode is Mode(guarantee)


def test_stdout_holds_at_least_once(folder: Path) -> None:
    assert declare(sink=ts.sinks.Stdout(), guarantee="at-least-once").explanation.holds


class TestSlips:
    """Python's own error names the argument that nobody knows: that is clear enough."""

    def test_in_a_job(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'chekpoint'"):
            declare(chekpoint="ck")

    def test_in_a_sink(self) -> None:
        settings: dict[str, Any] = {"fromat": "csv"}
        with pytest.raises(TypeError, match="unexpected keyword argument 'fromat'"):
            ts.sinks.Files("x", **settings)

    def test_in_write_stream(self) -> None:
        write_stream: Any = ts.write_stream
        with pytest.raises(TypeError, match="unexpected keyword argument 'guarante'"):
            write_stream(None, ts.sinks.Files("x"), checkpoint="ck", guarante="exactly-once")

    def test_what_is_missing_is_named(self) -> None:
        job: Any = ts.Job
        with pytest.raises(TypeError, match="'checkpoint'"):
            job("pv", source=numbers(), sink=ts.sinks.Files("x"))


class TestOutputs:
    def test_names_are_made_unique(self) -> None:
        third = ts.Output(ts.sinks.Files("c"), "third")
        sinks: list[ts.sinks.Sink | ts.Output] = [ts.sinks.Files("a"), ts.sinks.Files("b"), third, Memory("d")]
        assert [output.name for output in outputs_of(sinks)] == ["files", "files-2", "third", "memory"]

    def test_names_do_not_depend_on_what_comes_later(self) -> None:
        """The journal knows sinks by name: a sink that is added at the end must not rename the others."""
        sinks = [ts.sinks.Files(name) for name in "abcd"]
        names = [output.name for output in outputs_of(sinks)]
        assert [output.name for output in outputs_of(sinks[:2])] == names[:2]

    @pytest.mark.parametrize("name", ["a b", "a/b", "..", ".a", "-a", "é", 5])
    def test_names_that_cannot_be_folders(self, name: Any) -> None:
        with pytest.raises(ConfigError, match=f"output name {re.escape(repr(name))} is not usable"):
            ts.Output(ts.sinks.Files("a"), name)

    @pytest.mark.parametrize("where", ["", "  ", 5, ["id > 0"]])
    def test_where_is_a_condition(self, where: Any) -> None:
        with pytest.raises(ConfigError, match="where needs a SQL condition such as 'id > 0', found"):
            ts.Output(ts.sinks.Files("a"), where=where)

    @pytest.mark.parametrize("select", ["id", [], [""], [5], 5, {"id"}])
    def test_select_is_a_list(self, select: Any) -> None:
        with pytest.raises(ConfigError, match=r"select needs a list of columns or SQL expressions such as \['id'\]"):
            ts.Output(ts.sinks.Files("a"), select=select)

    @pytest.mark.parametrize("sink", [None, "out", ts.sinks.Files])
    def test_an_output_needs_a_sink(self, sink: Any) -> None:
        with pytest.raises(ConfigError, match="an output needs a sink, found"):
            ts.Output(sink)


class TestPlaces:
    def test_the_checkpoint_is_where_the_journal_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert _location(Journal(PosixStore(Path("ck/tallystick")))) == str(tmp_path / "ck")

    def test_rows_are_staged_beside_it(self, tmp_path: Path) -> None:
        [output] = outputs_of(ts.sinks.Stdout())
        staging = _staging(Journal(PosixStore(tmp_path / "ck" / "tallystick")), output)
        assert staging == tmp_path / "ck" / "tallystick" / "staging" / "stdout"

    def test_a_place_that_workers_do_not_share_is_refused(self) -> None:
        [output] = outputs_of(ts.sinks.Stdout())
        with pytest.raises(ConfigError, match=r"sink 'stdout' stages its rows beside the checkpoint.*found memory:"):
            _staging(Journal(MemoryStore()), output)


@pytest.mark.spark
class TestWriteStream:
    @pytest.fixture
    def writer(self, spark: SparkSession, tmp_path: Path) -> StreamWriter:
        return ts.write_stream(numbers().load(spark), ts.sinks.Files(tmp_path / "out"), checkpoint=tmp_path / "ck")

    def test_a_batch_is_refused(self, spark: SparkSession, folder: Path) -> None:
        with pytest.raises(ConfigError, match="needs a streaming DataFrame, found a batch one"):
            ts.write_stream(spark.range(3), ts.sinks.Files("out"), checkpoint="ck")

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"guarantee": "twice"}, "'twice' is unknown"),
            ({"sinks": []}, "at least one sink"),
            ({"sinks": None}, "needs a sink such as"),
            ({"sinks": ts.sinks.Stdout()}, "exactly-once cannot hold: the sink stdout"),
            ({"checkpoint": ""}, "needs a location of its own"),
            ({"checkpoint": 5}, "path or URI, found int"),
            ({"name": ""}, "a job's name is a text that is not empty, found ''"),
            ({"name": 5}, "a job's name is a text that is not empty, found 5"),
        ],
    )
    def test_wrong_declarations(self, spark: SparkSession, folder: Path, settings: dict[str, Any], text: str) -> None:
        complete: dict[str, Any] = {"sinks": ts.sinks.Files("out"), "checkpoint": "ck", **settings}
        with pytest.raises(ConfigError, match=text):
            ts.write_stream(numbers().load(spark), **complete)

    @pytest.mark.parametrize(
        "trigger",
        [
            {},
            {"once": True},
            {"continuous": "1 second"},
            {"processingTime": "1 second", "availableNow": True},
            {"processingTime": "soon"},
            {"processingTime": ""},
            {"processingTime": 5},
            {"processingTime": "-1 second"},
            {"availableNow": False},
            {"availableNow": "yes"},
        ],
    )
    def test_triggers_that_spark_does_not_know(self, writer: Any, trigger: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"trigger.*processingTime.*availableNow"):
            writer.trigger(**trigger)
        assert list(tmp_path.iterdir()) == []

    def test_other_settings_of_the_writer(self, writer: Any) -> None:
        with pytest.raises(ConfigError, match="output mode 'replace' is unknown"):
            writer.outputMode("replace")
        with pytest.raises(ConfigError, match="a job's name is a text"):
            writer.queryName(" ")

    @pytest.mark.parametrize("key", ["job.json", f"attempts/{Attempt(0, 1)}.json", "generations/0000001.json"])
    @pytest.mark.parametrize("damage", ["newer", "torn"])
    def test_a_checkpoint_that_cannot_be_read_is_left_alone(
        self, writer: Any, tmp_path: Path, key: str, damage: str
    ) -> None:
        """Only some files may be newer: job.json stays as the first version wrote it."""
        root = tmp_path / "ck" / "tallystick"
        journal = Journal(PosixStore(root))
        journal.identify(None)
        journal.claim_generation({}, first_epoch=0)
        journal.put(Record(Attempt(0, 1), Decision.COMMIT))
        path, newer = root / key, damage == "newer"
        path.write_text(path.read_text().replace('"version": 1', '"version": 9') if newer else "{")
        before = self.tree(tmp_path)
        with pytest.raises(NewerCheckpointError if newer else JournalCorruptError, match=re.escape(str(path))):
            writer.start()
        assert self.tree(tmp_path) == before

    def test_a_checkpoint_of_another_job_is_left_alone(self, writer: Any, tmp_path: Path) -> None:
        Journal(PosixStore(tmp_path / "ck" / "tallystick")).identify("orders")
        before = self.tree(tmp_path)
        with pytest.raises(ForeignCheckpointError, match="belongs to the job 'orders', not to 'pv'"):
            writer.queryName("pv").start()
        assert self.tree(tmp_path) == before

    @staticmethod
    def tree(folder: Path) -> dict[str, bytes | None]:
        return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    def test_a_location_is_taken_as_spark_takes_it(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark, the journal and the reader of the offset log must mean the same folder."""
        memory = Memory("percent")
        memory.clear()
        checkpoint = ts.Checkpoint(f"file://{tmp_path}/50%20off", interval="0s")
        ts.Job("pv", source=numbers(), sink=memory, checkpoint=checkpoint).run(spark, available_now=True)
        assert sorted(row["id"] for row in memory.rows()) == [0, 1, 2, 3]
        assert [path.name for path in tmp_path.iterdir()] == ["50%20off"]
        assert {"offsets", "commits", "tallystick"} <= {path.name for path in (tmp_path / "50%20off").iterdir()}
