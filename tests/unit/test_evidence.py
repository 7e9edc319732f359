"""From what a campaign notes to the line of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick import evidence
from tallystick.cli.guarantees import all_facts
from tallystick.errors import TallystickError
from tallystick.evidence import Found, Total


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notes"
    monkeypatch.setenv(evidence.ENVIRONMENT, str(path))
    return path


def kept(path: Path, *named: str) -> Path:
    """A file in which each of these campaigns has the same notes."""
    found = [note.to_json() for note in evidence.notes_in(path)]
    into = path.with_name("evidence.json")
    evidence.keep({name: {"command": "…", "date": "2026-01-01", "notes": found} for name in named}, into)
    return into


def test_what_campaigns_note_is_added_up_by_line(notes: Path) -> None:
    evidence.note(9, {"kafka": Found()}, {"files": Found(), "redis": Found(1, 2)})
    evidence.note(4, {"kafka": Found()}, {"files": Found()})
    path = kept(notes, "one", "two")
    assert evidence.behind("sinks", "files", path) == Total(26, 0, 0)
    assert evidence.behind("sinks", "redis", path) == Total(18, 2, 4)
    assert evidence.behind("sources", "kafka", path) == Total(26, 0, 0)


def test_a_line_without_evidence_says_so(notes: Path) -> None:
    evidence.note(9, {"kafka": Found()}, {"files": Found()})
    path = kept(notes, "one")
    assert str(evidence.behind("sinks", "kafka", path)) == "none yet"
    assert str(evidence.behind("sources", "kafka", path)) == "9: 0 lost, 0 repeated"
    assert str(evidence.behind("sinks", "files", path.with_name("nothing.json"))) == "none yet"


def test_the_whole_leaves_out_who_promises_less(notes: Path) -> None:
    evidence.note(9, {"kafka": Found()}, {"files": Found(1, 0), "redis": Found(0, 2)}, {"torn": 3}, [1.234, 5.0])
    evidence.note(4, {"rabbitmq": Found(7, 0)}, {})
    evidence.note(100, {}, {"socket": Found(0, 50)}, {"torn": 8}, [60.0])
    found = evidence.whole(kept(notes, "one"))
    assert found == evidence.Whole(13, {"lost": (13, 8), "repeated": (13, 2), "torn": (9, 3)}, [1.23, 5.0])


def test_a_source_has_what_all_sinks_found() -> None:
    assert evidence.together([Found(1, 2), Found(3, 4)]) == Found(4, 6)


def test_nothing_is_noted_where_nobody_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(evidence.ENVIRONMENT, raising=False)
    monkeypatch.chdir(tmp_path)
    evidence.note(1, {"kafka": Found()}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({"version": 99, "campaigns": {}}))
    with pytest.raises(TallystickError, match="needed 1: gather it anew"):
        evidence.kept(path)


def test_every_line_of_the_guarantees_has_what_is_behind_it() -> None:
    for role, lines in all_facts().items():
        for line in lines:
            assert Total(**line["killed"]) == evidence.behind(role, line["name"])


def test_what_is_kept_was_gathered_from_known_sources_and_sinks() -> None:
    known = {role: {line["name"] for line in lines} for role, lines in all_facts().items()}
    for campaign in evidence.kept().values():
        assert campaign["command"].startswith(("pytest ", "tallystick prove "))
        for value in campaign["notes"]:
            note = evidence.Note.from_json(value)
            assert note.kills > 0
            assert set(note.sources) <= known["sources"]
            assert set(note.sinks) <= known["sinks"]
