"""What campaigns have shown: the kills behind each line of the tables of guarantees.

A campaign (a kill matrix of the tests, or the prover) that runs with `ENVIRONMENT` set notes what it did in that file,
one line per job, whatever it found. ``scripts/gather_evidence.py`` runs campaigns that way and keeps their notes in
``evidence.json`` beside this module, each campaign with its command and date. Nothing in there is written by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.records import Json

ENVIRONMENT = "TALLYSTICK_EVIDENCE"
KEPT = Path(__file__).with_name("evidence.json")
VERSION = 1


@dataclass(frozen=True)
class Found:
    """What was wrong in the end, for one source or sink."""

    lost: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Note:
    """One job, killed so often. ``sources`` and ``sinks`` by the names in their facts.

    ``checks`` is what else was looked for, and how often it was found; ``recoveries_s`` the time of each restart to
    the first new row, where that was measured.
    """

    kills: int
    sources: Mapping[str, Found]
    sinks: Mapping[str, Found]
    checks: Mapping[str, int] = field(default_factory=dict)
    recoveries_s: Sequence[float] = ()

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Note:
        sources, sinks = (
            {str(name): Found(**found) for name, found in value[role].items()} for role in ("sources", "sinks")
        )
        checks = {str(name): int(count) for name, count in value.get("checks", {}).items()}
        return cls(int(value["kills"]), sources, sinks, checks, tuple(value.get("recoveries_s", ())))


@dataclass(frozen=True)
class Total:
    """Of all campaigns that had this source or sink."""

    kills: int = 0
    lost: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        return f"{self.kills}: {self.lost} lost, {self.repeated} repeated" if self.kills else "none yet"


def together(found: Iterable[Found]) -> Found:
    """What a source has whose records went to all of these."""
    listed = list(found)
    return Found(sum(one.lost for one in listed), sum(one.repeated for one in listed))


def note(
    kills: int,
    sources: Mapping[str, Found],
    sinks: Mapping[str, Found],
    checks: Mapping[str, int] | None = None,
    recoveries_s: Sequence[float] = (),
) -> None:
    """For campaigns: append what this one found, if anybody gathers it. Where a sink may repeat, leave the sources out:
    nobody could tell whose repeats these are."""
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        return
    made = Note(kills, sources, sinks, checks or {}, [round(took, 2) for took in recoveries_s])
    with Path(path).open("a") as file:
        file.write(json.dumps(made.to_json()) + "\n")


def notes_in(path: Path) -> list[Note]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Note.from_json(json.loads(line)) for line in lines]


def kept(path: Path = KEPT) -> dict[str, Json]:
    """Campaigns by name, as they are kept: ``command``, ``date`` and ``notes``."""
    value: Json = json.loads(path.read_text()) if path.exists() else {"version": VERSION, "campaigns": {}}
    if value.get("version") != VERSION:
        raise TallystickError(f"{path} has the version {value.get('version')!r}, needed {VERSION}: gather it anew")
    campaigns: dict[str, Json] = value["campaigns"]
    return campaigns


def keep(campaigns: Mapping[str, Json], path: Path = KEPT) -> None:
    text = json.dumps({"version": VERSION, "campaigns": dict(sorted(campaigns.items()))}, indent=1)
    path.write_text(text + "\n")


@dataclass(frozen=True)
class Whole:
    """Of all campaigns of jobs that promise exactly-once, together. ``counts`` has ``lost``, ``repeated`` and whatever
    else was looked for, each with how many kills it was looked for after and how often it was found."""

    kills: int
    counts: Mapping[str, tuple[int, int]]
    recoveries_s: Sequence[float]


def whole(path: Path = KEPT) -> Whole:
    kills, counts, took = 0, dict[str, tuple[int, int]](), list[float]()
    for value in (value for campaign in kept(path).values() for value in campaign["notes"]):
        one = Note.from_json(value)
        if not one.sources:
            continue  # it promises less
        kills, found = kills + one.kills, together([*one.sinks.values(), *([] if one.sinks else one.sources.values())])
        took += one.recoveries_s
        for name, count in {"lost": found.lost, "repeated": found.repeated, **one.checks}.items():
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + one.kills, before[1] + count)
    return Whole(kills, counts, took)


def behind(role: str, name: str, path: Path = KEPT) -> Total:
    """What is behind one line: ``role`` is sources or sinks."""
    kills = lost = repeated = 0
    for campaign in kept(path).values():
        for value in campaign["notes"]:
            found = getattr(Note.from_json(value), role).get(name)
            if found is not None:
                kills, lost, repeated = kills + value["kills"], lost + found.lost, repeated + found.repeated
    return Total(kills, lost, repeated)
