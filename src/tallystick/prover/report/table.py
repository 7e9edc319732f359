"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.prover.checkers import CHECKERS, Verdict
from tallystick.prover.report.result import Result, spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLOURS = {Verdict.VALID: "green", Verdict.INVALID: "red", Verdict.UNKNOWN: "yellow"}
SHOWN = 8


def show(result: Result, console: Console, checks: Table) -> None:
    """``checks`` is an empty table with the columns check, answer, count and evidence."""
    from rich.markup import escape

    colour = COLOURS[result.verdict]
    if result.rounds:
        for name in CHECKERS:
            checks.add_row(*_line(result, name))
        console.print(checks)
        console.print(_summary(result), soft_wrap=True)
    console.print(f"verdict: [bold {colour}]{result.verdict.value}[/]", soft_wrap=True)
    for sink, wrong in result.convicted.items():
        console.print(f"  {escape(sink)}: {', '.join(wrong)}", soft_wrap=True)
    for note in result.notes:
        console.print(f"about: {escape(note)}", soft_wrap=True)
    if result.why:
        console.print(f"why: {escape(result.why)}", soft_wrap=True)
        console.print(f"needed: {escape(result.needed)}", soft_wrap=True)
    if result.verdict is Verdict.INVALID:
        promise = "as it promises" if result.as_promised else "less than it promises"
        console.print(f"the job promises {result.promised.value}: this is {promise}", soft_wrap=True)


def _line(result: Result, name: str) -> tuple[str, str, str, str]:
    from rich.markup import escape

    answers = list(result.answers(name))
    if not answers:
        return name, "-", "", NOT_CHECKED[name]
    verdict = Verdict.worst(answer.verdict for answer in answers)
    evidence = next((answer.evidence[0] for answer in answers if answer.evidence), "")
    count = sum(answer.count for answer in answers)
    return name, f"[{COLOURS[verdict]}]{verdict.value}[/]", f"{count:,}", escape(evidence[:160])


NOT_CHECKED = {
    "reordered": "the outputs have no order that readers could rely on",
    "state": "the job keeps no state",
    **{name: "" for name in CHECKERS if name not in ("reordered", "state")},
}
"""Why a checker had nothing to look at."""


def _summary(result: Result) -> str:
    recovery, retry = spread(result.recoveries_s), spread(result.retries_s)
    parts = [f"{len(result.rounds)} rounds, {sum(each.rows for each in result.rounds):,} rows read, seed {result.seed}"]
    parts.append(f"{result.kills} kills: " + ", ".join(f"{place} {count}" for place, count in _most(result)))
    others = {kind: count for kind, count in result.faults.items() if not kind.startswith("kill-")}
    if others:
        parts.append("other faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(others.items())))
    if result.missed:
        missed = ", ".join(f"{kind} {count}" for kind, count in sorted(result.missed.items()))
        parts.append(f"planned, but the job had ended or nobody was there to hit: {missed}")
    if recovery["count"]:
        parts.append(f"restart to first new row: median {recovery['median']} s, longest {recovery['max']} s")
    if retry["count"]:
        parts.append(f"killed worker to next new row: median {retry['median']} s, longest {retry['max']} s")
    return "\n".join(parts)


def _most(result: Result) -> list[tuple[str, int]]:
    common = result.kills_by_place.most_common()
    rest = sum(count for _, count in common[SHOWN:])
    return common[:SHOWN] + ([("elsewhere", rest)] if rest else [])
