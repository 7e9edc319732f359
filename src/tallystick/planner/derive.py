"""The end-to-end guarantee is that of the weakest part: each part that is weaker than the mode is a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tallystick.guarantees import SinkFacts, SourceFacts, weakest
from tallystick.records import Json, Mode


@dataclass(frozen=True)
class Node:
    """One part of a job: a source, the epochs in the middle, or a sink."""

    name: str
    role: str
    guarantee: Mode
    mechanism: str
    target: str = ""


@dataclass(frozen=True)
class Finding:
    """Why the guarantee is not what was asked for, and what to do about it."""

    rule: str
    loses: str
    why: str
    fix: str


@dataclass(frozen=True)
class Explanation:
    asked: Mode
    guarantee: Mode
    nodes: tuple[Node, ...]
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        return not self.findings

    def to_json(self) -> Json:
        nodes = [{**asdict(node), "guarantee": node.guarantee.value} for node in self.nodes]
        return {
            "asked": self.asked.value,
            "guarantee": self.guarantee.value,
            "holds": self.holds,
            "nodes": nodes,
            "findings": [asdict(finding) for finding in self.findings],
        }


_MIDDLE = {
    Mode.EXACTLY_ONCE: "two-phase commit per epoch: one journal decision for all sinks",
    Mode.AT_LEAST_ONCE: "an unfinished epoch is done again, whatever was decided about it",
    Mode.AT_MOST_ONCE: "an epoch counts as given before it is written, and is never done again",
}


def derive(
    sources: Mapping[str, tuple[SourceFacts, str]], mode: Mode, sinks: Mapping[str, tuple[SinkFacts, str]]
) -> Explanation:
    """What holds end to end. Sources and sinks are given by name, each with its facts and its target in words."""
    nodes = [Node(name, "source", facts.guarantee, facts.mechanism, where) for name, (facts, where) in sources.items()]
    nodes.append(Node("epochs", "coordinator", mode, _MIDDLE[mode]))
    nodes += [Node(name, "sink", facts.guarantee, facts.mechanism, where) for name, (facts, where) in sinks.items()]
    findings = tuple(finding for node in nodes if (finding := _finding(node, mode)) is not None)
    return Explanation(mode, weakest(mode, *(node.guarantee for node in nodes)), tuple(nodes), findings)


def _finding(node: Node, mode: Mode) -> Finding | None:
    """A sink may repeat, a source may lose; a mode that allows just that has nothing to complain about."""
    if node.role == "source" and node.guarantee is Mode.AT_MOST_ONCE and mode is not Mode.AT_MOST_ONCE:
        return Finding(
            "source-may-lose",
            "records",
            f"the source {node.name} is at-most-once: {node.mechanism}",
            'use a source that can be replayed, or declare guarantee="at-most-once"',
        )
    if node.role == "sink" and node.guarantee is Mode.AT_LEAST_ONCE and mode is not Mode.AT_LEAST_ONCE:
        return Finding(
            "sink-may-repeat",
            "uniqueness",
            f"the sink {node.name} is at-least-once: {node.mechanism}",
            'use a transactional or idempotent sink, or declare guarantee="at-least-once"',
        )
    return None
