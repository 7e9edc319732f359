"""From rehearsal to expectation, from history to result, and the page about it: without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from file_slices import made, prepare, rows

import tallystick as ts
from tallystick import evidence
from tallystick.errors import TallystickError, UnprovenError
from tallystick.prover.checkers import Verdict
from tallystick.prover.expectation import expectation_of
from tallystick.prover.faults import Schedule
from tallystick.prover.faults.kill import KillAt
from tallystick.prover.feeds import feed_for
from tallystick.prover.history import LAST, WATCHER, History, HistoryFile, lines_of
from tallystick.prover.hooks import Hooks
from tallystick.prover.place import Place
from tallystick.prover.readers import Item, Reader, reader_for, row_text
from tallystick.prover.redirect import Subject
from tallystick.prover.rehearsal import Rehearsal, Written
from tallystick.prover.report.page import page
from tallystick.prover.report.result import Result, RoundResult, unproven
from tallystick.prover.watch import key_of
from tallystick.prover.workload import Workload
from tallystick.records import Json, Mode

WORK = Workload(1, epochs=2, per_epoch=4, keys=2)


def job(tmp_path: Path, **other: Any) -> ts.Job:
    settings: dict[str, Any] = {
        "source": ts.sources.Collection([{"id": 1}]),
        "sink": ts.sinks.Files(tmp_path / "out", format="json"),
        "checkpoint": tmp_path / "checkpoint",
        **other,
    }
    return ts.Job("judged", **settings)


def subject(tmp_path: Path, **hooks: Any) -> Subject:
    return Subject(job(tmp_path), Hooks(**hooks))


def written(*rows: str, epoch: int = 0) -> tuple[Written, ...]:
    return tuple(Written(row, epoch, "file") for row in rows)


def rehearsal(first: Sequence[Written], second: Sequence[Written] | None = None) -> Rehearsal:
    return Rehearsal(({"files": tuple(first)}, {"files": tuple(first if second is None else second)}), False, 0.5)


ROWS = tuple(row_text({"id": number}) for number in range(4))


class TestExpectation:
    def test_a_job_that_can_be_judged(self, tmp_path: Path) -> None:
        made = expectation_of(subject(tmp_path), WORK, rehearsal(written(*ROWS)), 60.0)
        assert made.total == 4
        assert not made.natures["files"].ordered

    def refused(self, tmp_path: Path, found: Rehearsal, **hooks: Any) -> UnprovenError:
        with pytest.raises(UnprovenError) as caught:
            expectation_of(subject(tmp_path, **hooks), WORK, found, 60.0)
        assert caught.value.needed
        return caught.value

    def test_two_runs_that_differ(self, tmp_path: Path) -> None:
        why = self.refused(tmp_path, rehearsal(written(*ROWS), written(*ROWS[:3], '{"id": 9}')))
        assert "the job is not deterministic" in str(why)

    def test_rows_that_are_cut_into_other_epochs(self, tmp_path: Path) -> None:
        other = (*written(*ROWS[:3]), *written(ROWS[3], epoch=1))
        assert "not deterministic" in str(self.refused(tmp_path, rehearsal(written(*ROWS), other)))

    def test_rows_without_ids(self, tmp_path: Path) -> None:
        assert "has no ids" in str(self.refused(tmp_path, rehearsal(written(*ROWS, ROWS[0]))))
        assert "every row" in str(self.refused(tmp_path, rehearsal(written(ROWS[0], ROWS[0]))))

    def test_no_rows(self, tmp_path: Path) -> None:
        assert "wrote nothing to the output 'files'" in str(self.refused(tmp_path, rehearsal(())))

    def test_what_the_author_expects(self, tmp_path: Path) -> None:
        def told(records: list[Any]) -> list[dict[str, int]]:
            return [{"id": number} for number in range(4)]

        made = expectation_of(subject(tmp_path, expected=told), WORK, rehearsal(written(*ROWS)), 60.0)
        assert made.total == 4
        why = self.refused(tmp_path, rehearsal(written(*ROWS[:3])), expected=told)
        assert 'expected and not found {"id": 3}' in str(why)

    @pytest.mark.parametrize("told", [[1, 2], {"other": []}])
    def test_what_makes_no_sense_to_expect(self, tmp_path: Path, told: object) -> None:
        assert "prove_expected gave" in str(
            self.refused(tmp_path, rehearsal(written(*ROWS)), expected=lambda records: told)
        )

    def test_it_goes_through_json(self) -> None:
        found = rehearsal(written(*ROWS))
        assert Rehearsal.from_json(json.loads(json.dumps(found.to_json()))) == found


class TestWhatCannotBeProven:
    def test_a_sink_that_nobody_reads_back(self, tmp_path: Path) -> None:
        with pytest.raises(UnprovenError, match="knows no reader for the kind 'memory'") as caught:
            reader_for(ts.sinks.Memory("table"))
        assert "tallystick.prover.Reader" in caught.value.needed

    def test_a_source_that_cannot_be_replayed(self) -> None:
        facts = SimpleNamespace(name="tap", guarantee=Mode.AT_MOST_ONCE, kept=Mode.AT_MOST_ONCE)
        source: Any = SimpleNamespace(name="tap", facts=facts)
        with pytest.raises(UnprovenError, match="source tap cannot be replayed"):
            feed_for(source)

    def test_a_source_of_an_unknown_kind(self) -> None:
        source: Any = SimpleNamespace(name="well", facts=SimpleNamespace(name="well", kept=Mode.EXACTLY_ONCE))
        with pytest.raises(UnprovenError, match="how to feed a source of kind 'well'"):
            feed_for(source)

    def test_a_reader_of_the_users_own_is_found(self, tmp_path: Path) -> None:
        class MemoryReader(Reader):
            kind = "memory-of-a-test"

            @classmethod
            def redirect(cls, sink: Any, name: str, place: Place) -> Any:
                return sink

            def read(self) -> dict[str, list[Item]]:
                return {}

        sink: Any = SimpleNamespace(target="x", facts=SimpleNamespace(name="memory-of-a-test"))
        assert reader_for(sink) is MemoryReader

    def test_the_result_is_unknown_and_says_why(self, tmp_path: Path) -> None:
        result = unproven("job.py", job(tmp_path), 1, "rows have no ids", "ids")
        assert result.verdict is Verdict.UNKNOWN
        assert result.as_promised is None
        told = result.to_json()
        assert (told["verdict"], told["why"], told["needed"]) == ("unknown", "rows have no ids", "ids")
        assert "rows have no ids" in page(result)


class TestRedirection:
    def test_the_copy_writes_elsewhere_and_stays_what_it_was(self, tmp_path: Path) -> None:
        class Mine(ts.sinks.Files):
            pass

        mine = Mine(tmp_path / "mine", partition_by=["day"], compression="zstd")
        moved: Any = reader_for(mine).redirect(mine, "out", Place(str(tmp_path / "proof"), "round-1"))
        assert type(moved) is Mine
        assert moved.path == tmp_path / "proof" / "round-1" / "output" / "out"
        assert moved.settings.partition_by == ("day",)
        assert moved.settings.compression == "zstd"
        assert mine.path == tmp_path / "mine"
        assert str(moved.staging.root).startswith(str(moved.path))

    def test_a_kafka_sink_forgets_addresses_and_secrets(self, tmp_path: Path) -> None:
        options = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
        }
        mine = ts.sinks.Kafka("far:9092", "orders", options={**options, "compression.type": "lz4"})
        place = Place(str(tmp_path), "round-1", {"kafka": "near:1"}, {"kafka": "near:2"})
        moved: Any = reader_for(mine).redirect(mine, "kafka", place)
        assert (moved.settings.servers, moved.topic) == ("near:1", "prove-round-1-kafka")
        assert dict(moved.options) == {"compression.type": "lz4"}

    def test_a_kafka_sink_whose_rows_name_topics(self, tmp_path: Path) -> None:
        mine = ts.sinks.Kafka("far:9092")
        with pytest.raises(UnprovenError, match="takes its topics from the rows"):
            reader_for(mine).redirect(mine, "kafka", Place(str(tmp_path), "round-1"))

    def test_a_place_without_the_server(self, tmp_path: Path) -> None:
        with pytest.raises(TallystickError, match="no server of kind 'kafka' was started"):
            Place(str(tmp_path), "round-1").server("kafka")


@pytest.mark.parametrize(
    ("format_name", "settings"),
    [
        ("json", {}),
        ("parquet", {}),
        ("orc", {}),
        ("csv", {"header": True}),
        ("json", {"compression": "gzip"}),
        ("text", {}),
    ],
)
def test_what_is_published_is_read_back(tmp_path: Path, format_name: str, settings: dict[str, Any]) -> None:
    """Written by the sink itself; what is staged is not seen."""
    sink = made(tmp_path / "out", format=format_name, **settings)
    lines = pa.RecordBatch.from_pydict({"value": ['{"id": 1}', '{"id": 2}']})
    committable = prepare(sink, lines if format_name in ("text", "json", "csv") else rows(1, 2))
    reader = reader_for(sink)(sink, Place(str(tmp_path), "round-1"))
    assert not reader.read()
    sink.commit(committable)
    [items] = reader.read().values()
    assert len(items) == 2
    assert reader.read()[next(iter(reader.read()))] is items, "an unchanged file is not read again"


def test_a_file_that_cannot_be_read_is_a_row_that_nobody_sent(tmp_path: Path) -> None:
    for name, text in (("half.json", '{"id": 1}\n{"id"'), ("list.json", "[1]")):
        (tmp_path / name).write_text(text)
    reader = reader_for(ts.sinks.Files(tmp_path, format="json"))(ts.sinks.Files(tmp_path, format="json"), Place("", ""))
    rows = [item.row for items in reader.read().values() for item in items]
    assert rows == ['{"id": 1}', '{"unreadable line": "{\\"id\\""}', '{"unreadable line": "[1]"}']
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    sink = ts.sinks.Files(tmp_path, format="parquet")
    [*_, torn] = reader_for(sink)(sink, Place("", "")).read().values()
    assert "unreadable file" in torn[0].row


def test_keys_are_recognised() -> None:
    keys = frozenset({"key_001", "key_002"})
    assert key_of(Item('{"app": "key_002", "pv": 3}'), keys) == "key_002"
    assert key_of(Item('{"value": "x"}', "key_001"), keys) == "key_001"
    assert key_of(Item('{"value": "key_009"}', "mine"), keys) == "mine"


def a_history(path: Path, last: Sequence[str] = ("a", "b"), finished: bool = True) -> RoundResult:
    """Two lives: killed, with a worker killed before that, and started again."""
    schedule = Schedule(7, ((KillAt("after-write", 1, worker=True), KillAt("after-decide", 1)),), 3)
    lines: list[Json] = [
        {"event": "begun", "schedule": schedule.to_json()},
        {
            "event": "nature",
            "sinks": {"out": {"ordered": False, "settles_s": 2.0, "order_known": True}},
            "keeps_state": False,
            "stuck_s": 60.0,
        },
        {"event": "expected", "sink": "out", "epoch": 0, "rows": [["a", None]]},
        {"event": "expected", "sink": "out", "epoch": 1, "rows": [["b", None]]},
        {"event": "started", "at": 100.0, "life": 1, "pid": 11, "faults": []},
        {"event": "decided", "epoch": 0, "generation": 1, "decision": "COMMIT", "when": 103.0},
        {"event": "read", "at": 103.5, "reader": WATCHER, "sink": "out", "began": 103.4, "new": {"f": [["a", None]]}},
        {"event": "killed", "at": 105.0, "when": 103.2, "life": 1, "what": "worker", "where": "after-write", "pid": 12},
        {"event": "killed", "at": 105.0, "life": 1, "what": "driver", "where": "after-decide", "pid": 11},
        {"event": "ended", "at": 105.0, "life": 1, "status": -9, "killed": True},
        {"event": "started", "at": 106.0, "life": 2, "pid": 13, "faults": []},
        {"event": "injected", "at": 107.0, "life": 2, "fault": {"kind": "pause", "after_s": 1, "lasts_s": 1}},
        {"event": "healed", "at": 108.0, "life": 2, "fault": {"kind": "pause", "after_s": 1, "lasts_s": 1}},
        {"event": "decided", "epoch": 1, "generation": 2, "decision": "COMMIT", "when": 109.0},
        {"event": "settled", "epoch": 1, "when": 109.2},
        {"event": "read", "at": 109.5, "reader": WATCHER, "sink": "out", "began": 109.4, "new": {"g": [["b", None]]}},
        {"event": "ended", "at": 112.0, "life": 2, "status": 0, "killed": False},
        {
            "event": "read",
            "at": 113.0,
            "reader": LAST,
            "sink": "out",
            "began": 112.5,
            "new": {"f": [[row, None] for row in last]},
        },
    ]
    path.write_text("".join(json.dumps({"at": 99.0, **line}) + "\n" for line in lines))
    return RoundResult.of(1, path, schedule, finished)


class TestResult:
    def result(self, tmp_path: Path, *rounds: RoundResult, **other: Any) -> Result:
        return Result.of("job.py", Subject(job(tmp_path, **other), Hooks()), 7, "kill-points", rounds)

    def test_a_good_round(self, tmp_path: Path) -> None:
        result = self.result(tmp_path, a_history(tmp_path / "h"))
        told = result.to_json()
        assert told["verdict"] == "valid"
        assert told["kills"] == 2
        assert told["kills_by_place"] == {"driver: after-decide": 1, "worker: after-write": 1}
        assert told["faults"] == {"kill-driver": 1, "kill-worker": 1, "pause": 1}
        assert told["checks"] == {"lost": 0, "repeated": 0, "phantom": 0, "dirty": 0, "torn": 0, "stuck": 0}
        assert told["not_checked"] == ["reordered", "state"]
        assert told["recovery_s"] == {"median": 3.5, "max": 3.5, "count": 1}
        assert told["worker_retry_s"]["median"] == pytest.approx(0.3)
        assert told["as_promised"] is True

    def test_a_life_that_showed_nothing_new_did_not_recover(self, tmp_path: Path) -> None:
        path = tmp_path / "h"
        a_history(path)
        lines = [line for line in lines_of(path) if not (line["event"] == "ended" and line["life"] == 2)]
        lines.append({"event": "ended", "at": 108.0, "life": 2, "status": -9, "killed": True})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        told = self.result(tmp_path, RoundResult.of(1, path, Schedule(7, (), 3), True)).to_json()
        assert told["recovery_s"]["count"] == 0

    def test_one_bad_round_is_enough(self, tmp_path: Path) -> None:
        rounds = a_history(tmp_path / "good"), a_history(tmp_path / "bad", ("a", "b", "b"))
        result = self.result(tmp_path, *rounds)
        assert result.verdict is Verdict.INVALID
        assert result.convicted == {"out": ["repeated"]}
        assert result.as_promised is False
        assert self.result(tmp_path, *rounds, guarantee="at-least-once").as_promised is True
        assert self.result(tmp_path, *rounds, guarantee="at-most-once").as_promised is False

    def test_a_reader_with_a_promise_of_its_own_is_judged_by_that(self, tmp_path: Path) -> None:
        result = self.result(tmp_path, a_history(tmp_path / "bad", ("a", "b", "b")), guarantee="at-least-once")
        assert result.as_promised is True
        assert replace(result, promises={"out": Mode.EXACTLY_ONCE}).as_promised is False

    def test_what_it_is_about_is_told(self, tmp_path: Path) -> None:
        result = replace(self.result(tmp_path, a_history(tmp_path / "h")), notes=("from the receipt on",))
        assert result.to_json()["notes"] == ["from the receipt on"]
        assert "<dd>from the receipt on</dd>" in page(result)

    def test_it_is_noted_as_evidence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(evidence.ENVIRONMENT, str(tmp_path / "notes"))
        result = replace(self.result(tmp_path, a_history(tmp_path / "bad", ("b", "b"))), sinks={"out": "files"})
        result.note()
        unproven("job.py", job(tmp_path), 1, "rows have no ids", "ids").note()
        repeating = self.result(tmp_path, a_history(tmp_path / "two"), guarantee="at-least-once")
        replace(repeating, sinks={"out": "kinesis"}).note()
        wrong, right = evidence.Found(lost=1, repeated=1), evidence.Found()
        looked = {"phantom": 0, "dirty": 0, "torn": 0, "stuck": 0}
        assert evidence.notes_in(tmp_path / "notes") == [
            evidence.Note(2, {"collection": wrong}, {"files": wrong}, {**looked, "torn": 1}, (3.5,)),
            evidence.Note(2, {}, {"kinesis": right}, looked, (3.5,)),
        ]

    def test_a_round_that_did_not_come_to_its_end_is_not_valid(self, tmp_path: Path) -> None:
        result = self.result(tmp_path, a_history(tmp_path / "h", finished=False))
        assert result.verdict is Verdict.UNKNOWN
        assert "did not come to the end of its input" in result.why

    def test_without_a_fault_nothing_is_proven(self, tmp_path: Path) -> None:
        path = tmp_path / "h"
        a_history(path)
        quiet = [line for line in lines_of(path) if line["event"] not in ("killed", "injected", "healed")]
        path.write_text("".join(json.dumps(line) + "\n" for line in quiet))
        result = self.result(tmp_path, RoundResult.of(1, path, Schedule(7, (), 3), True))
        assert result.verdict is Verdict.UNKNOWN
        assert "no fault was injected" in result.why

    def test_no_round_at_all_is_not_valid(self, tmp_path: Path) -> None:
        assert self.result(tmp_path).verdict is Verdict.UNKNOWN


class TestHistoryFile:
    def test_what_is_added_is_found(self, tmp_path: Path) -> None:
        file = HistoryFile(tmp_path / "h")
        file.add("killed", what="worker", where="after-write")
        file.add("killed", what="kafka", where="a random time")
        file.close()
        assert file.kills == 1
        assert [line["what"] for line in lines_of(tmp_path / "h")] == ["worker", "kafka"]

    def test_it_is_never_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "h").touch()
        with pytest.raises(FileExistsError):
            HistoryFile(tmp_path / "h")

    def test_a_line_that_was_cut_off_at_the_end(self, tmp_path: Path) -> None:
        (tmp_path / "h").write_text('{"event": "begun"}\n{"ev')
        assert list(lines_of(tmp_path / "h")) == [{"event": "begun"}]
        (tmp_path / "h").write_text('{"ev\n{"event": "begun"}\n')
        with pytest.raises(TallystickError, match="line 1 is no JSON"):
            list(lines_of(tmp_path / "h"))


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    rounds = (a_history(tmp_path / "h"), a_history(tmp_path / "bad", ("a", "<b>")))
    text = page(Result.of("job.py", subject(tmp_path), 7, "kill-points", rounds))
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.tags.count("svg") == 2
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "restart to first new row: 3.50 s" in text


def test_a_history_is_read_back(tmp_path: Path) -> None:
    a_history(tmp_path / "h")
    history = History.load(tmp_path / "h")
    assert history.wanted("out") == {"a": 1, "b": 1}
    assert history.settled == {1: 109.2}
    assert history.first_seen("out") == {"a": 103.5, "b": 109.5}
