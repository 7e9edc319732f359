"""A guarantee is printed only if every part keeps it; each part that does not is a finding with a way out."""

from __future__ import annotations

import itertools
import json

import pytest

from tallystick.guarantees import Kind, SinkFacts, SourceFacts, weakest
from tallystick.planner import derive
from tallystick.records import Json, Mode

MAY_LOSE, MAY_REPEAT = Mode.AT_MOST_ONCE, Mode.AT_LEAST_ONCE
everything = pytest.mark.parametrize(("source", "mode", "sink"), list(itertools.product(Mode, Mode, Mode)))


def source_facts(guarantee: Mode) -> tuple[SourceFacts, str]:
    return SourceFacts("src", guarantee, "how it reads"), "src:somewhere"


def sink_facts(guarantee: Mode) -> tuple[SinkFacts, str]:
    return SinkFacts("snk", Kind.TRANSACTIONAL, guarantee, "how it writes"), "snk:somewhere"


def explained(source: Mode, mode: Mode, sink: Mode) -> Json:
    return derive({"in": source_facts(source)}, mode, {"out": sink_facts(sink)}).to_json()


@everything
def test_a_promise_holds_only_if_no_part_breaks_it(source: Mode, mode: Mode, sink: Mode) -> None:
    """Exactly-once: no part may lose or repeat. At-least-once: none may lose. At-most-once: none may repeat."""
    broken = {Mode.EXACTLY_ONCE: {MAY_LOSE, MAY_REPEAT}, MAY_REPEAT: {MAY_LOSE}, MAY_LOSE: {MAY_REPEAT}}[mode]
    plan = explained(source, mode, sink)
    guilty = [name for name, part in (("in", source), ("out", sink)) if part in broken]
    assert plan["holds"] == (not guilty)
    assert len(plan["findings"]) == len(guilty)
    for name, finding in zip(guilty, plan["findings"], strict=True):
        assert f" {name} is " in finding["why"]


@everything
def test_what_is_printed_is_never_more_than_what_holds(source: Mode, mode: Mode, sink: Mode) -> None:
    plan = explained(source, mode, sink)
    parts = {source, mode, sink}
    if {MAY_LOSE, MAY_REPEAT} <= parts:
        assert plan["guarantee"] == "none", "what may lose and may repeat has no guarantee"
    else:
        assert plan["guarantee"] == weakest(source, mode, sink).value
    if plan["holds"]:
        assert plan["guarantee"] == plan["asked"]


@everything
def test_the_shape_of_an_explanation(source: Mode, mode: Mode, sink: Mode) -> None:
    plan = explained(source, mode, sink)
    assert json.loads(json.dumps(plan)) == plan
    assert {"guarantee", "nodes", "findings"} <= plan.keys()
    assert [(node["name"], node["role"]) for node in plan["nodes"]] == [
        ("in", "source"),
        ("epochs", "coordinator"),
        ("out", "sink"),
    ]
    assert all(isinstance(node["guarantee"], str) and node["mechanism"] for node in plan["nodes"])
    for finding in plan["findings"]:
        assert set(finding) == {"rule", "loses", "why", "fix"}
        assert all(isinstance(text, str) and text for text in finding.values())


@everything
def test_doing_what_a_finding_says_helps(source: Mode, mode: Mode, sink: Mode) -> None:
    """The mode that the only finding names is one that holds."""
    plan = explained(source, mode, sink)
    if len(plan["findings"]) == 1 and plan["guarantee"] != "none":
        named = next(other for other in Mode if f'guarantee="{other.value}"' in plan["findings"][0]["fix"])
        assert explained(source, named, sink)["holds"]


def test_the_rules_have_names() -> None:
    plan = explained(MAY_LOSE, Mode.EXACTLY_ONCE, MAY_REPEAT)
    assert [(finding["rule"], finding["loses"]) for finding in plan["findings"]] == [
        ("source-may-lose", "records"),
        ("sink-may-repeat", "uniqueness"),
    ]


def test_one_weak_sink_of_many_is_the_one_named() -> None:
    sinks = {"a": sink_facts(Mode.EXACTLY_ONCE), "b": sink_facts(MAY_REPEAT), "c": sink_facts(Mode.EXACTLY_ONCE)}
    explanation = derive({"in": source_facts(Mode.EXACTLY_ONCE)}, Mode.EXACTLY_ONCE, sinks)
    [finding] = explanation.findings
    assert "sink b is at-least-once: how it writes" in finding.why
    assert explanation.guarantee is Mode.AT_LEAST_ONCE
    assert not explanation.holds


def test_targets_are_in_the_plan() -> None:
    nodes = explained(Mode.EXACTLY_ONCE, Mode.EXACTLY_ONCE, Mode.EXACTLY_ONCE)["nodes"]
    assert [node["target"] for node in nodes] == ["src:somewhere", "", "snk:somewhere"]


def test_without_known_sources_the_sinks_and_the_mode_decide() -> None:
    """`write_stream` takes a DataFrame, whose sources nobody declared."""
    explanation = derive({}, Mode.EXACTLY_ONCE, {"out": sink_facts(Mode.EXACTLY_ONCE)})
    assert explanation.holds
    assert [node.role for node in explanation.nodes] == ["coordinator", "sink"]


@pytest.mark.parametrize(("one", "other"), list(itertools.product(Mode, Mode)))
def test_the_weaker_of_two(one: Mode, other: Mode) -> None:
    assert weakest(one, other) is weakest(other, one)
    assert weakest(one, one) is one
    assert weakest(one, Mode.EXACTLY_ONCE) is one
