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

    @property
    def words(self) -> str:
        """What holds end to end; "none" where one part may lose and another may repeat."""
        found = {node.guarantee for node in self.nodes}
        return "none" if {Mode.AT_MOST_ONCE, Mode.AT_LEAST_ONCE} <= found else self.guarantee.value

    def to_json(self) -> Json:
        nodes = [{**asdict(node), "guarantee": node.guarantee.value} for node in self.nodes]
        return {
            "asked": self.asked.value,
            "guarantee": self.words,
            "holds": self.holds,
            "nodes": nodes,
            "findings": [asdict(finding) for finding in self.findings],
        }


_MIDDLE = {
    Mode.EXACTLY_ONCE: "two-phase commit per epoch: one journal decision for all sinks",
    Mode.AT_LEAST_ONCE: "an unfinished epoch is done again, whatever was decided about it",
    Mode.AT_MOST_ONCE: "an epoch counts as given before it is written, and is never done again",
}

_BETTER = {"source": "a source that can be replayed", "sink": "a transactional or idempotent sink"}


def derive(
    sources: Mapping[str, tuple[SourceFacts, str]], mode: Mode, sinks: Mapping[str, tuple[SinkFacts, str]]
) -> Explanation:
    """What holds end to end. Sources and sinks are given by name, each with its facts and its target in words."""
    nodes = [Node(name, "source", facts.kept, facts.mechanism, where) for name, (facts, where) in sources.items()]
    nodes.append(Node("epochs", "coordinator", mode, _MIDDLE[mode]))
    nodes += [Node(name, "sink", facts.guarantee, facts.mechanism, where) for name, (facts, where) in sinks.items()]
    findings = tuple(finding for node in nodes if (finding := _finding(node, mode)) is not None)
    return Explanation(mode, weakest(mode, *(node.guarantee for node in nodes)), tuple(nodes), findings)


def _finding(node: Node, mode: Mode) -> Finding | None:
    """Whatever is at-most-once may lose, whatever is at-least-once may repeat; a mode that allows just that is kept."""
    if node.guarantee in (Mode.EXACTLY_ONCE, mode):
        return None
    loses = "records" if node.guarantee is Mode.AT_MOST_ONCE else "uniqueness"
    return Finding(
        f"{node.role}-may-{'lose' if node.guarantee is Mode.AT_MOST_ONCE else 'repeat'}",
        loses,
        f"the {node.role} {node.name} is {node.guarantee.value}: {node.mechanism}",
        f'use {_BETTER[node.role]}, or declare guarantee="{node.guarantee.value}"',
    )
