"""The copy of a job that is proven talks to nobody but the prover's own servers; and what is judged, is said."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.errors import UnprovenError
from tallystick.prover.life import subject_of
from tallystick.prover.place import TABLE_LETTERS_MAX, Place
from tallystick.prover.readers import reader_for
from tallystick.prover.redirect import Subject
from tallystick.prover.workload import Workload
from tallystick.records import Mode
from tallystick.servers import S3Server
from tallystick.servers.registry import KINDS
from tallystick.servers.tcp_proxy import OnePort

JOBS = Path(__file__).parents[1] / "chaos" / "prove_connectors.py"
NAMES = ("databases", "search", "lake", "sends", "kinesis_to_postgresql", "received")
ADDRESSES = {
    "postgresql": "postgresql://postgres@127.0.0.1:1/postgres",
    "redis": "redis://127.0.0.1:2/0",
    "cassandra": "127.0.0.1:3",
    "opensearch": "http://127.0.0.1:4",
    "hdfs": "hdfs://127.0.0.1:5",
    "s3": "http://127.0.0.1:6",
    "kinesis": "http://127.0.0.1:7",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:8/%2F",
}


def place(tmp_path: Path, run: str = "round-1") -> Place:
    return Place(str(tmp_path), run, ADDRESSES, ADDRESSES)


def values_in(thing: Any) -> str:
    """Everything that an object holds, two levels deep, as a text."""
    held = {**getattr(thing, "__dict__", {})}
    return str(held) + "".join(str(getattr(value, "__dict__", value)) for value in held.values())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_users_is_left_in_the_sinks(tmp_path: Path, name: str) -> None:
    subject: Subject = subject_of(f"{JOBS}:{name}")
    for output, sink in subject.sinks(place(tmp_path)).items():
        assert "far" not in values_in(sink), (output, values_in(sink))
        assert "never-written" not in values_in(sink)
        assert "far" not in sink.target


@pytest.mark.parametrize("name", NAMES)
def test_runs_write_apart_from_each_other(tmp_path: Path, name: str) -> None:
    subject = subject_of(f"{JOBS}:{name}")
    first, second = (subject.sinks(place(tmp_path, run)) for run in ("round-1", "round-2"))
    for output in first:
        assert values_in(first[output]) != values_in(second[output])


@pytest.mark.parametrize("name", ["kinesis_to_postgresql", "received"])
def test_nothing_of_the_users_is_left_in_the_sources(tmp_path: Path, name: str) -> None:
    job = subject_of(f"{JOBS}:{name}").redirected(Workload(1, 2), place(tmp_path))
    for source in job.sources.values():
        assert "never-written" not in values_in(source)
        assert "far.example" not in values_in(source)


def test_the_prover_starts_what_is_needed_and_disturbs_what_the_job_talks_to() -> None:
    subject = subject_of(f"{JOBS}:received")
    assert subject.servers() == ("rabbitmq",)
    assert subject.servers(disturbed=True) == ()
    assert subject_of(f"{JOBS}:databases").servers(disturbed=True) == ("postgresql", "redis")


def test_a_proof_from_the_receipt_on_says_so() -> None:
    notes = subject_of(f"{JOBS}:received").notes()
    assert len(notes) == 3
    assert "source rabbitmq: from the queue on" in notes[0]
    assert all("from the receipt on" in note for note in notes[1:])


def test_kinesis_is_judged_twice_and_each_promise_is_said() -> None:
    subject = subject_of(f"{JOBS}:sends")
    assert list(subject.readers()) == ["kinesis", "kinesis, read by the kinesis source", "socket"]
    assert subject.promises() == {"kinesis, read by the kinesis source": Mode.EXACTLY_ONCE}
    assert any("at-least-once" in note for note in subject.notes())
    assert any(note.endswith("exactly-once") for note in subject.notes())


def test_which_outputs_show_the_latest_rows_only() -> None:
    shown = subject_of(f"{JOBS}:databases").latest_only()
    assert shown == {"appended": False, "upserted": True, "stream": False, "sums": True, "fields": True}
    shown = subject_of(f"{JOBS}:search").latest_only()
    assert shown == {"latest": True, "history": True, "documents": True, "appended": False}


def test_a_table_with_deletions_gets_no_verdict() -> None:
    sink = ts.sinks.PostgreSQL("postgresql://h/d", "t", mode="changes", key=["id"], delete_flag="gone")
    with pytest.raises(UnprovenError, match="deletes rows") as caught:
        reader_for(sink).latest_only(sink)
    assert "mode='append' or mode='upsert'" in caught.value.needed


def test_a_table_whose_key_is_not_known_gets_no_verdict() -> None:
    sink = ts.sinks.Cassandra("h", "k.t")
    with pytest.raises(UnprovenError, match="primary key") as caught:
        reader_for(sink).latest_only(sink)
    assert "key=['app']" in caught.value.needed


@pytest.mark.parametrize("name", ["out", "Out", "o.u.t", "ö", "x" * 80])
def test_names_of_tables_are_plain_short_and_differ(tmp_path: Path, name: str) -> None:
    found = place(tmp_path).table_name(name)
    assert len(found) <= TABLE_LETTERS_MAX
    assert found.isascii()
    assert found.replace("_", "").isalnum()
    assert found == found.lower()
    others = [place(tmp_path).table_name(other) for other in ("out", "Out", "o.u.t", "ö", "x" * 80) if other != name]
    assert found not in others


def test_a_port_is_chosen_once(tmp_path: Path) -> None:
    here = place(tmp_path)
    assert here.port("socket") == replace(here).port("socket") == copy.copy(here).port("socket")


@pytest.mark.parametrize("kind", ["postgresql", "redis", "rabbitmq"])
def test_a_job_is_sent_through_a_proxy(tmp_path: Path, kind: str) -> None:
    server = KINDS[kind](tmp_path)
    assert isinstance(server, OnePort)
    proxy = server.proxy()
    assert proxy.target_port == server.ports[0] != proxy.port
    assert server.proxied_address == server.address_of(proxy.port) != server.address


def test_a_server_that_forgets_is_not_killed(tmp_path: Path) -> None:
    (tmp_path / "product").write_text("moto")
    assert not S3Server(tmp_path).keeps_data
    (tmp_path / "product").write_text("versitygw")
    assert S3Server(tmp_path).keeps_data
