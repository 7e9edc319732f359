"""``tallystick guarantees`` prints what sources and sinks say of themselves."""

from __future__ import annotations

import pytest

from cli_runner import Tally
from tallystick import sinks, sources
from tallystick.guarantees import Kind
from tallystick.records import Mode


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def test_every_exported_source_and_sink_is_listed(tally: Tally) -> None:
    answer = tally("guarantees", "--json")
    assert answer.status == 0
    listed = {role: {entry["name"] for entry in answer.json[role]} for role in ("sources", "sinks")}
    assert listed["sinks"] >= {sinks.Files.facts.name, sinks.Memory.facts.name, sinks.Stdout.facts.name}
    assert listed["sources"] >= {sources.Files.facts.name, sources.Collection.facts.name}
    for role, keys in (("sources", set()), ("sinks", {"kind"})):
        for entry in answer.json[role]:
            assert entry.keys() >= {"name", "guarantee", "mechanism", "conditions"} | keys
            assert entry["guarantee"] in [mode.value for mode in Mode]
            assert entry.get("kind", Kind.PLAIN.value) in [kind.value for kind in Kind]


def test_the_tables_fit_eighty_columns(tally: Tally) -> None:
    shown = tally("guarantees")
    assert "files" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80
