"""``tallystick lag`` on checkpoints as a job would leave them, and what watches the lag of a job that runs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from cli_runner import Tally, commit, finish, vote
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.receiver import LogSettings, ReceiverLog, Record
from tallystick.sources.base import SourceLog
from tallystick.sources.lag import Lag
from tallystick.spark.lag import Watch, lags

JOB = """
import tallystick as ts

job = ts.Job(
    "pv",
    source={
        "rows": ts.sources.Collection([{"id": number} for number in range(10)]),
        "lines": ts.sources.Files("in", "text", options={"pathGlobFilter": "*.{txt,log}"}),
        "clicks": ts.sources.Socket("log", listen="127.0.0.1:7000"),
    },
    steps=lambda rows, lines, clicks: rows,
    sink=ts.sinks.Memory("t"),
    checkpoint="checkpoint",
)
"""


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)


def begun(folder: Path, *sources: str) -> Path:
    """A checkpoint that a driver has claimed for these sources, in the order of Spark's log."""
    checkpoint = folder / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    journal = Journal(PosixStore(checkpoint / "tallystick"))
    journal.identify("pv")
    journal.claim_generation({"pid": 1, "sources": list(sources)}, first_epoch=0)
    return checkpoint


def read_up_to(checkpoint: Path, epoch: int, *offsets: Mapping[str, Any]) -> None:
    finish(checkpoint, epoch)
    (checkpoint / "offsets" / str(epoch)).write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))


def received(folder: Path, count: int) -> None:
    with ReceiverLog(folder, LogSettings(1 << 20, 1 << 16, 3600, 100)) as log:
        log.append([Record(b"click", str(number)) for number in range(count)])


class TestCommand:
    def test_every_source_says_what_waits_in_its_own_units(self, tally: Tally, tmp_path: Path) -> None:
        checkpoint = begun(tmp_path, "clicks", "lines", "rows")  # the order of the log is not that of the declaration
        (tmp_path / "in" / "day=1").mkdir(parents=True)
        for name, size in {
            "a b.txt": 5,
            "b.txt": 7,
            "day=1/c.log": 11,
            ".d.txt": 13,
            "_e.txt": 17,
            "f.csv": 19,
        }.items():
            (tmp_path / "in" / name).write_text("x" * size)
        (checkpoint / "sources" / "1").mkdir(parents=True)
        (checkpoint / "sources" / "1" / "0").write_text(logged(tmp_path / "in" / "a b.txt", 0))
        (checkpoint / "sources" / "1" / "1").write_text(logged(tmp_path / "in" / "b.txt", 1))
        received(tmp_path / "log", 6)
        read_up_to(checkpoint, 0, {"log": "", "offset": 2}, {"logOffset": 0}, {"offset": 4})
        ran = tally("lag", "job.py", "--json")
        assert ran.status == 0, ran.err
        found = {one["name"]: one["lag"] for one in ran.json["sources"]}
        assert found == {"clicks": {"records": 4}, "lines": {"files": 2, "bytes": 18}, "rows": {"records": 6}}
        assert ran.json["epoch"] == 0
        told = tally("lag", "job.py").out
        for words in ("4 records", "2 files, 18 bytes", "6 records", "log 0", "after epoch 0"):
            assert words in told
        Journal(PosixStore(checkpoint / "tallystick")).put(commit(0, 1, vote(6)))
        shown = tally("checkpoints", "show", checkpoint, "--job", "job.py", "--no-state", "--json").json
        assert [source["lag"] for source in shown["sources"]] == [found["clicks"], found["lines"], found["rows"]]
        assert "lag 2 files, 18 bytes" in tally("checkpoints", "show", checkpoint, "--job", "job.py", "--no-state").out

        read_up_to(checkpoint, 1, {"log": "", "offset": 6}, {"logOffset": 1}, {"offset": 10})
        (tmp_path / "in" / "day=1" / "c.log").unlink()
        assert [one["lag"] for one in tally("lag", "job.py", "--json").json["sources"]] == [
            {"records": 0},
            {"files": 0, "bytes": 0},
            {"records": 0},
        ]
        assert tally("lag", "job.py").out.count("nothing") == 3

    def test_a_file_that_grew_after_it_was_read_is_noticed(self, tally: Tally, tmp_path: Path) -> None:
        """It was written in place, and read too early, at the end of a line."""
        checkpoint = begun(tmp_path, "clicks", "lines", "rows")
        (tmp_path / "in").mkdir()
        grown, kept = tmp_path / "in" / "grown.txt", tmp_path / "in" / "kept.txt"
        for file in (grown, kept):
            file.write_text("first\n")
            os.utime(file, (1000.5, 1000.5))
        (checkpoint / "sources" / "1").mkdir(parents=True)
        lines = [logged(grown, 0, 1_000_500), logged(kept, 0, 1_000_000).partition("\n")[2]]  # whole seconds
        (checkpoint / "sources" / "1" / "0").write_text("".join(lines))
        read_up_to(checkpoint, 0, {"log": "", "offset": 0}, {"logOffset": 0}, {"offset": 10})
        assert tally("lag", "job.py", "--json").json["sources"][1]["notice"] is None
        grown.write_text("first\nsecond\n")
        ran = tally("lag", "job.py", "--json")
        lines_now = ran.json["sources"][1]
        assert lines_now["lag"] == {"files": 0, "bytes": 0}
        assert lines_now["notice"].startswith(f"{grown} changed after being read")
        assert "changed after being read" in tally("lag", "job.py").err

    def test_a_source_that_cannot_be_asked_is_unknown_with_its_words(self, tally: Tally, tmp_path: Path) -> None:
        checkpoint = begun(tmp_path, "clicks", "lines", "rows")
        read_up_to(checkpoint, 0, {"log": "", "offset": 0}, {"logOffset": 0}, {"offset": 4})
        ran = tally("lag", "job.py", "--json")
        assert ran.status == 1, "the folder in/ is not there"
        clicks, lines, rows = ran.json["sources"]
        assert (clicks["lag"], rows["lag"]) == ({"records": 0}, {"records": 6})
        assert lines["lag"] is None
        assert "No such file" in lines["unknown"]
        assert "No such file" in tally("lag", "job.py").err

    def test_before_the_first_epoch_everything_waits(self, tally: Tally, tmp_path: Path) -> None:
        begun(tmp_path)
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.txt").write_text("x")
        received(tmp_path / "log", 3)
        found = tally("lag", "job.py", "--json").json
        assert found["epoch"] == -1
        assert [one["lag"] for one in found["sources"]] == [{"records": 10}, {"files": 1, "bytes": 1}, {"records": 3}]

    def test_a_checkpoint_of_other_sources_is_not_guessed_at(self, tally: Tally, tmp_path: Path) -> None:
        read_up_to(begun(tmp_path, "rows", "others"), 0, {"offset": 4}, {"offset": 4})
        ran = tally("lag", "job.py", "--json")
        assert ran.status == 1
        assert {one["unknown"] for one in ran.json["sources"]} == {
            "the checkpoint was written for the sources rows, others"
        }

    def test_a_job_that_never_ran(self, tally: Tally) -> None:
        ran = tally("lag", "job.py")
        assert ran.status == 1
        assert "there is no folder" in ran.err


def logged(path: Path, entry: int, changed_ms: int = 1 << 50) -> str:
    """As Spark's file source logs a file."""
    name = f"file://{path}".replace(" ", "%20")
    return f"v1\n{json.dumps({'path': name, 'timestamp': changed_ms, 'batchId': entry})}\n"


@pytest.mark.parametrize(
    ("lag", "words"),
    [
        (Lag(records=0), "nothing"),
        (Lag(records=1), "1 record"),
        (Lag(files=1200, bytes=1), "1,200 files, 1 byte"),
        (Lag(behind_ms=1500), "1.5 s behind"),
        (Lag(), "nothing"),
    ],
)
def test_a_lag_in_words(lag: Lag, words: str) -> None:
    assert str(lag) == words
    assert lag.waits == (words != "nothing")


class Slow(ts.sources.Collection):
    """Its system does not answer until it is told to."""

    answers = threading.Event()
    asked = 0

    def lag(self, read: Any, log: SourceLog, spark: object = None) -> Lag:
        type(self).asked += 1
        if not self.answers.wait(30):
            raise TimeoutError("nobody let it answer")
        raise ConnectionError("it is gone")


def test_a_source_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    read_up_to(begun(tmp_path, "collection"), 3, {"offset": 4})
    job = ts.Job("pv", source=Slow([{"id": 1}]), sink=ts.sinks.Memory("t"), checkpoint=tmp_path / "checkpoint")
    Slow.answers.clear()
    with Watch(job, None) as watch:  # type: ignore[arg-type]  # a local checkpoint needs no Spark
        began_s = time.monotonic()
        for _ in range(1000):
            watch.finished(3)
        assert watch.last(0.05) == []
        assert time.monotonic() - began_s < 1
    assert Slow.asked == 2, "once by the watch, however often it was told, and once at the end"
    Slow.answers.set()
    [failed] = lags(job, str(tmp_path / "checkpoint"), 3)
    assert (failed.lag, failed.unknown) == (None, "it is gone")
    assert watch.last(5) == [failed], "what a source raises is its answer, and ends nothing"


def test_what_is_to_be_noticed_is_told_once_also_while_no_epoch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a stream of nothing but bad lines."""
    monkeypatch.setattr("tallystick.spark.lag.EVERY_S", 0.02)
    read_up_to(begun(tmp_path, "socket"), 3, {"log": "", "offset": 4})
    source = ts.sources.Socket(tmp_path / "log", listen="127.0.0.1:7000")
    job = ts.Job("pv", source=source, sink=ts.sinks.Memory("t"), checkpoint=tmp_path / "checkpoint")
    received(tmp_path / "log", 6)
    received(tmp_path / "log" / "dead-letters", 2)
    with Watch(job, None) as watch:  # type: ignore[arg-type]  # a local checkpoint needs no Spark
        deadline = time.monotonic() + 10
        while not watch.newest and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
    assert [one.lag for one in watch.newest] == [source.lag({"offset": 4}, list)]
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == f"source socket: 2 dead letters: tallystick receiver dead-letters {tmp_path / 'log'}"
