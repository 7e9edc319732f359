"""The report as one page: everything inside, no scripts, nothing fetched. For people who were not there."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from importlib.metadata import version

from tallystick.prover.checkers import CHECKERS, Verdict
from tallystick.prover.history import History
from tallystick.prover.report.result import Result, RoundResult, spread
from tallystick.prover.report.table import NOT_CHECKED
from tallystick.prover.report.timeline import timeline

MEANINGS = {
    "lost": "a row that should be there is not",
    "repeated": "a row is there more often than it should be",
    "phantom": "a row that nobody sent",
    "dirty": "a reader saw a row before it was decided, or one that went away again",
    "torn": "an epoch was over and only a part of it was visible",
    "reordered": "the rows of a key came in another order",
    "stuck": "readers waited too long for an epoch that was over",
    "state": "a key's running result went astray",
}

STYLE = """
:root { --ink: #1c2733; --dim: #66727f; --line: #dde3e9; --paper: #fff; --good: #18794e; --bad: #c62a2f;
        --doubt: #ad5700; --blue: #2f6feb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9aa7b4; --line: #313b46; --paper: #0f151b; --good: #3dd68c; --bad: #ff6b6f;
          --doubt: #ffb057; --blue: #79a8ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1140px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-weight: 700; } .valid { color: var(--good); } .invalid { color: var(--bad); }
.unknown { color: var(--doubt); }
.dim { color: var(--dim); } table { border-collapse: collapse; }
th, td { text-align: left; padding: .3rem 1.5rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: .85em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--dim); } dd { margin: 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--dim); }
svg .name { text-anchor: end; } svg .tick { text-anchor: middle; font-size: 11px; } svg .in { fill: var(--ink); }
svg .grid { stroke: var(--line); } svg .life { fill: var(--line); } svg .fault { fill: var(--doubt); opacity: .6; }
svg .recovery { fill: var(--blue); opacity: .7; } svg .commit { stroke: var(--good); stroke-width: 2; }
svg .abort { stroke: var(--doubt); stroke-width: 2; } svg .settled { fill: var(--dim); }
svg .rows { fill: none; stroke: var(--blue); stroke-width: 1.5; } svg .worker { fill: var(--bad); }
svg .killed path { stroke: var(--bad); stroke-width: 2.5; fill: none; }
"""

LEGEND = (
    "A bar is one life of the job. A red cross is a SIGKILL of the whole job, a red dot one of a Python worker. Blue "
    "bars run from a restart to the first new row that a reader saw. Green strokes are decisions to commit, amber ones "
    "to abort; a dot below means that Spark has noted the epoch as over. The line counts the rows that a reader of "
    "committed rows, who read all along, had seen. Hold the pointer over a mark to read what it is."
)


def page(result: Result) -> str:
    """While the histories are there."""
    title = f"Proof of {escape(result.job)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1>{''.join(_body(result))}</body></html>\n"
    )


def _body(result: Result) -> Iterable[str]:
    verdict = result.verdict.value
    yield f'<p>Verdict: <span class="verdict {verdict}">{verdict}</span>. {_sentence(result)}</p>'
    yield _facts(result)
    if not result.rounds:
        return
    yield "<h2>Checks</h2>" + _checks(result)
    yield "<h2>Where it was killed</h2>" + _kills(result)
    yield f'<h2>Rounds</h2><p class="dim">{LEGEND}</p>'
    for each in result.rounds:
        yield _round(each)


def _sentence(result: Result) -> str:
    if result.why:
        return f"{escape(result.why)}. Needed: {escape(result.needed)}."
    if result.verdict is Verdict.VALID:
        return f"{result.kills} processes were killed, and readers saw every row exactly once."
    wrong = "; ".join(f"{escape(sink)}: {', '.join(names)}" for sink, names in result.convicted.items())
    return f"The job promises {result.promised.value}. What readers saw was wrong: {wrong}."


def _facts(result: Result) -> str:
    recovery, retry = spread(result.recoveries_s), spread(result.retries_s)
    facts = {
        "job": f"<code>{escape(result.spec)}</code>",
        "promise": result.promised.value,
        **({"about": "<br>".join(escape(note) for note in result.notes)} if result.notes else {}),
        "faults": f"{escape(result.family) or 'none'}, seed {result.seed}",
        "kills": f"{result.kills} in {len(result.rounds)} rounds",
        "other faults": ", ".join(
            f"{escape(kind)} {count}" for kind, count in sorted(result.faults.items()) if not kind.startswith("kill-")
        )
        or "none",
        "rows read": f"{sum(each.rows for each in result.rounds):,}",
        "restart to first new row": _times(recovery),
        "killed worker to next new row": _times(retry),
        "made": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, tallystick {version('tallystick')}",
    }
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items()) + "</dl>"


def _times(times: dict[str, float | int | None]) -> str:
    if not times["count"]:
        return "not measured"
    return f"median {times['median']} s, longest {times['max']} s, of {times['count']}"


def _checks(result: Result) -> str:
    lines = []
    for name in CHECKERS:
        answers = list(result.answers(name))
        if not answers:
            lines.append(
                f'<tr><td>{name}</td><td class="dim">not checked</td><td></td><td>{NOT_CHECKED[name]}</td></tr>'
            )
            continue
        verdict = Verdict.worst(answer.verdict for answer in answers)
        evidence = [text for answer in answers for text in answer.evidence][:5]
        shown = "<br>".join(f"<code>{escape(text[:300])}</code>" for text in evidence)
        count = sum(answer.count for answer in answers)
        lines.append(
            f'<tr><td>{name}<br><span class="dim">{MEANINGS[name]}</span></td><td class="{verdict.value}">'
            f'{verdict.value}</td><td class="number">{count:,}</td><td>{shown}</td></tr>'
        )
    head = "<tr><th>check</th><th>answer</th><th>count</th><th>evidence</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def _kills(result: Result) -> str:
    lines = [
        f'<tr><td>{escape(place)}</td><td class="number">{count}</td></tr>'
        for place, count in sorted(result.kills_by_place.items())
    ]
    return f"<table><tr><th>place</th><th>kills</th></tr>{''.join(lines)}</table>"


def _round(each: RoundResult) -> str:
    verdict = each.verdict.value
    head = f'<h3>Round {each.number}: <span class="{verdict}">{verdict}</span></h3>'
    return f"{head}{timeline(History.load(each.history))}"
