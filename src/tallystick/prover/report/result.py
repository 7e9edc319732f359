"""The verdict of a campaign and its evidence, as values. Pure, but for the reading of histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tallystick.evidence import Found, note, together
from tallystick.prover.checkers import CHECKERS, Answer, Verdict, check
from tallystick.prover.faults.draw import Schedule
from tallystick.prover.history import KILLED, WATCHER, History
from tallystick.prover.redirect import Subject
from tallystick.records import Json, Mode
from tallystick.spark.job import Job

SEEN_S = 0.5
"""What a life showed last is seen a moment after its end."""


@dataclass(frozen=True)
class RoundResult:
    """One round, judged. ``recoveries_s`` has a time per restart after a kill, ``retries_s`` one per killed worker."""

    number: int
    history: Path
    schedule: Schedule
    finished: bool
    answers: Mapping[str, Mapping[str, Answer]]
    kills: Counter[str]
    faults: Counter[str]
    rows: int
    recoveries_s: tuple[float, ...]
    retries_s: tuple[float, ...]
    missed: Counter[str] = field(default_factory=Counter)
    """Faults that were planned and did not come to pass, by kind."""

    @classmethod
    def of(cls, number: int, path: Path, schedule: Schedule, finished: bool) -> RoundResult:
        history = History.load(path)
        kills = Counter(_place_of(event) for event in history.events if _is_kill(event))
        injected = (str(event["fault"]["kind"]) for event in history.events if event["event"] == "injected")
        faults = Counter(kind for kind in injected if not kind.startswith("kill-"))
        faults.update("downtime" for event in history.events if event["event"] == "down")
        faults.update(f"kill-{event['what']}" for event in history.events if event["event"] == "killed")
        rows = sum((history.delivered(sink) or Counter()).total() for sink in history.expected)
        return cls(
            number,
            path,
            schedule,
            finished,
            check(history),
            kills,
            faults,
            rows,
            tuple(recoveries(history)),
            tuple(retries(history)),
            Counter(str(event["fault"]["kind"]) for event in history.events if event["event"] == "missed"),
        )

    @property
    def verdict(self) -> Verdict:
        given = [answer.verdict for by_checker in self.answers.values() for answer in by_checker.values()]
        return Verdict.worst([*given, Verdict.VALID if self.finished else Verdict.UNKNOWN])


@dataclass(frozen=True)
class Result:
    """``why`` and ``needed`` say why the verdict is unknown, if it is."""

    spec: str
    job: str
    promised: Mode
    seed: int
    family: str
    rounds: tuple[RoundResult, ...] = ()
    why: str = ""
    needed: str = ""
    notes: tuple[str, ...] = ()
    """What the verdict is about, where that has to be said: a source that cannot be replayed, several readers."""
    promises: Mapping[str, Mode] = field(default_factory=dict)
    """Of readers that must see something else than the job promises."""
    sources: tuple[str, ...] = ()
    sinks: Mapping[str, str] = field(default_factory=dict)
    """The kinds of sources, and those of sinks by output."""

    @classmethod
    def of(cls, spec: str, subject: Subject, seed: int, family: str, rounds: tuple[RoundResult, ...]) -> Result:
        job = subject.job
        made = cls(
            spec,
            job.name,
            job.mode,
            seed,
            family,
            rounds,
            notes=subject.notes(),
            promises=subject.promises(),
            sources=tuple(source.facts.name for source in job.sources.values()),
            sinks={output.name: output.sink.facts.name for output in job.outputs},
        )
        unfinished = [each.number for each in rounds if not each.finished]
        if unfinished:
            why = f"round {unfinished[0]} did not come to the end of its input after its last fault"
            return replace(made, why=why, needed=f"its logs: {made.folder(unfinished[0])}")
        if not made.kills and not made.faults:
            return replace(made, why="no fault was injected, so nothing was proven", needed="more kills or more time")
        return made

    def folder(self, number: int) -> Path:
        return next(each.history.parent for each in self.rounds if each.number == number)

    @property
    def verdict(self) -> Verdict:
        found = Verdict.worst(each.verdict for each in self.rounds)
        return Verdict.UNKNOWN if self.why and found is Verdict.VALID else found

    @property
    def checks(self) -> dict[str, int]:
        """How often each checker found something wrong, over all rounds and outputs; only those that looked."""
        return {
            name: sum(answer.count for answer in self.answers(name))
            for name in CHECKERS
            if any(True for _ in self.answers(name))
        }

    def answers(self, checker: str) -> Iterable[Answer]:
        return (
            by_checker[checker] for each in self.rounds for by_checker in each.answers.values() if checker in by_checker
        )

    @property
    def convicted(self) -> dict[str, list[str]]:
        """By output: the checkers that found something."""
        found: dict[str, set[str]] = {}
        for each in self.rounds:
            for sink, by_checker in each.answers.items():
                wrong = {name for name, answer in by_checker.items() if answer.verdict is Verdict.INVALID}
                if wrong:
                    found.setdefault(sink, set()).update(wrong)
        return {sink: [name for name in CHECKERS if name in wrong] for sink, wrong in found.items()}

    def count(self, checker: str, sink: str) -> int:
        """What a checker found in all outputs to one kind of sink."""
        of_kind = {name for name, kind in self.sinks.items() if kind == sink}
        return sum(
            by_checker[checker].count
            for each in self.rounds
            for output, by_checker in each.answers.items()
            if output in of_kind and checker in by_checker
        )

    def note(self) -> None:
        """As evidence, if somebody gathers it. Nothing is noted of which nothing is known."""
        if self.verdict is not Verdict.UNKNOWN:
            sinks = {
                kind: Found(self.count("lost", kind), self.count("repeated", kind)) for kind in self.sinks.values()
            }
            sources = self.sources if self.promised is Mode.EXACTLY_ONCE else ()
            others = {name: count for name, count in self.checks.items() if name not in ("lost", "repeated")}
            note(self.kills, dict.fromkeys(sources, together(sinks.values())), sinks, others, self.recoveries_s)

    @property
    def kills(self) -> int:
        return sum(each.kills.total() for each in self.rounds)

    @property
    def kills_by_place(self) -> Counter[str]:
        return sum((each.kills for each in self.rounds), Counter())

    @property
    def faults(self) -> Counter[str]:
        return sum((each.faults for each in self.rounds), Counter())

    @property
    def missed(self) -> Counter[str]:
        return sum((each.missed for each in self.rounds), Counter())

    @property
    def recoveries_s(self) -> list[float]:
        return [took for each in self.rounds for took in each.recoveries_s]

    @property
    def retries_s(self) -> list[float]:
        return [took for each in self.rounds for took in each.retries_s]

    def to_json(self) -> Json:
        return {
            "verdict": self.verdict.value,
            "job": self.job,
            "promised": self.promised.value,
            "as_promised": self.as_promised,
            "checks": self.checks,
            "convicted": self.convicted,
            "not_checked": [name for name in CHECKERS if name not in self.checks],
            "rounds": len(self.rounds),
            "rows": sum(each.rows for each in self.rounds),
            "kills": self.kills,
            "kills_by_place": dict(sorted(self.kills_by_place.items())),
            "faults": dict(sorted(self.faults.items())),
            "missed": dict(sorted(self.missed.items())),
            "family": self.family,
            "seed": self.seed,
            "recovery_s": spread(self.recoveries_s),
            "worker_retry_s": spread(self.retries_s),
            "notes": list(self.notes),
            **({"why": self.why, "needed": self.needed} if self.why else {}),
        }

    @property
    def as_promised(self) -> bool | None:
        """Whether the job kept what it promises itself, which may be less than exactly once. None: not known."""
        if self.verdict is Verdict.UNKNOWN:
            return None
        allowed = {
            Mode.EXACTLY_ONCE: set[str](),
            Mode.AT_LEAST_ONCE: {"repeated", "reordered", "torn", "dirty", "state"},
            Mode.AT_MOST_ONCE: {"lost", "torn", "state"},
        }
        return all(
            name in allowed[self.promises.get(output, self.promised)]
            for output, wrong in self.convicted.items()
            for name in wrong
        )


def unproven(spec: str, job: Job, seed: int, why: str, needed: str) -> Result:
    return Result(spec, job.name, job.mode, seed, "", (), why, needed)


def spread(times_s: Sequence[float]) -> Json:
    if not times_s:
        return {"median": None, "max": None, "count": 0}
    return {"median": round(median(times_s), 2), "max": round(max(times_s), 2), "count": len(times_s)}


def recoveries(history: History) -> list[float]:
    """From each start after a kill to the first row that became visible in that life."""
    return [end - begin for begin, end in recovery_spans(history)]


def recovery_spans(history: History) -> list[tuple[float, float]]:
    """Lives that were killed before they could show a new row did not recover: they are left out."""
    restarts, dead = [], False
    for event in history.events:
        if event["event"] == "killed" and event["what"] == "driver":
            dead = True
        elif event["event"] == "started" and dead:
            dead = False
            restarts.append((float(event["at"]), event["life"]))
    return _to_new_rows(history, restarts)


def retries(history: History) -> list[float]:
    """From each kill of a worker or executor to the next row that became visible in the same life."""
    killed = [event for event in history.events if _is_kill(event) and event["what"] != "driver"]
    spans = _to_new_rows(history, [(float(event.get("when", event["at"])), event["life"]) for event in killed])
    return [end - begin for begin, end in spans]


def _to_new_rows(history: History, moments: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    shown = sorted(read.at for read in history.reads if read.new and read.reader == WATCHER)
    ends = {event["life"]: float(event["at"]) for event in history.events if event["event"] == "ended"}
    spans = []
    for moment, life in moments:
        first = next((at for at in shown if at > moment), None)
        if first is not None and first <= ends.get(life, first) + SEEN_S:
            spans.append((moment, first))
    return spans


def _is_kill(event: Json) -> bool:
    return event["event"] == "killed" and event["what"] in KILLED


def _place_of(event: Json) -> str:
    return f"{event['what']}: {event['where']}"
