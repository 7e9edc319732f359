"""What may change between a savepoint and the job that goes on from it. Pure: declarations in, words out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tallystick.records import Json


@dataclass(frozen=True)
class Change:
    """One difference, whether it is allowed, and what follows from it."""

    what: str
    allowed: bool
    why: str

    def to_json(self) -> Json:
        return {"what": self.what, "allowed": self.allowed, "why": self.why}


def changes(manifest: Json, sources: Sequence[str], sinks: Mapping[str, str]) -> list[Change]:
    """``sources`` by name as declared, ``sinks`` targets by name."""
    return [*_sources(manifest, sources), *_sinks(manifest["sinks"], sinks)]


def _sources(manifest: Json, now: Sequence[str]) -> list[Change]:
    before = [str(name) for name in manifest["sources"]]
    read = len(manifest["offsets"])
    if read != len(now):
        why = "Spark's offsets are a list without names: none can be added or left out. start with a new checkpoint"
        return [Change(f"{read} sources became {len(now)}", False, why)]
    if sorted(before) != sorted(now):
        why = "sources are matched by their order in the plan; keep it, and let each read where the old one did"
        return [Change(f"sources {', '.join(before)} are now called {', '.join(now)}", True, why)]
    return []


def _sinks(before: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    found = []
    for name in sorted(set(before) | set(now)):
        if name not in before:
            why = "it gets the epochs after the savepoint; earlier rows are not written to it"
            found.append(Change(f"sink {name} is new", True, why))
        elif name not in now:
            found.append(Change(f"sink {name} is gone", True, "nothing of it is open at a settled epoch"))
        elif before[name] != now[name]:
            why = "nothing of it is open at a settled epoch; what was written stays where it is"
            found.append(Change(f"sink {name} goes to {now[name]}, was {before[name]}", True, why))
    return found
