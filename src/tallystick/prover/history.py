"""What happened in one round, as it happened: an append-only file of JSON lines, and the reading of it.

Every line has ``at`` (seconds, by the clock of the prover's own process, which no fault moves) and ``event``:

=========  ==========================================================================================
begun      the job, its promise, the seed, the schedule of faults
nature     of each output: ordered or not, how soon it settles; does the job keep state; what counts as stuck
sent       the numbers that were put into a source
expected   what an epoch writes to an output without faults, in order
started    a life of the job: its process, and the faults that are planned for it
injected   a fault; ``healed`` when it is over
killed     a process ended by SIGKILL: the driver or a worker, at which point or when
ended      a life: its exit status
decided    a decision in the journal; ``when`` is the time of its file
settled    an epoch is in Spark's commit log; ``when`` is the time of its file
read       what a reader found that was not there before (``new``), and what is not there any more (``gone``)
failed     a reader got no answer, or a life ended badly
=========  ==========================================================================================

``read`` by *watcher* is all along, by *last* a fresh reader when everything is over; ``began`` says when the reading
began, ``at`` when it ended.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.prover.readers.base import Item
from tallystick.records import Json

WATCHER, LAST = "watcher", "last"
KILLED = ("driver", "worker", "executor")
"""The processes of a job: the kills that count. Those of servers are faults of another kind."""


class HistoryFile:
    """Written by the prover alone, from several threads; a line is on its way to the disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kills = 0
        self._lock = threading.Lock()
        self._file = path.open("x", encoding="utf-8")

    def add(self, event: str, **fields: Json) -> None:
        with self._lock:
            self.kills += event == "killed" and fields["what"] in KILLED
            self._file.write(json.dumps({"at": round(time.time(), 4), "event": event, **fields}) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def lines_of(path: Path) -> Iterator[Json]:
    """A last line that was cut off by a crash is left out; any other damage is an error."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise TallystickError(f"{path}, line {number} is no JSON: the history was changed") from None


@dataclass(frozen=True)
class Read:
    reader: str
    sink: str
    began: float
    at: float
    new: Mapping[str, tuple[Item, ...]] = field(default_factory=dict)
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def arrived(self) -> Iterator[Item]:
        for items in self.new.values():
            yield from items


@dataclass(frozen=True)
class Decided:
    epoch: int
    generation: int
    decision: str
    when: float


@dataclass(frozen=True)
class Nature:
    """``order_known``: two runs without faults agreed on the order of each key's rows. ``latest_only``: later rows
    replace earlier ones, each in a place of its own."""

    ordered: bool = False
    settles_s: float | None = 2.0
    order_known: bool = True
    latest_only: bool = False


@dataclass
class History:
    """The parts of a history that checkers look at. Also what tests write by hand."""

    expected: dict[str, dict[int, tuple[Item, ...]]] = field(default_factory=dict)
    natures: dict[str, Nature] = field(default_factory=dict)
    keeps_state: bool = False
    stuck_s: float = 60.0
    reads: list[Read] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    settled: dict[int, float] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    """The other lines, as they are: lives, faults and kills, for the report."""

    @classmethod
    def load(cls, path: Path) -> History:
        return cls.of(lines_of(path))

    @classmethod
    def of(cls, lines: Iterable[Json]) -> History:
        made = cls()
        expected: dict[str, dict[int, tuple[Item, ...]]] = defaultdict(dict)
        versions: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            match line["event"]:
                case "nature":
                    made.keeps_state, made.stuck_s = line["keeps_state"], line["stuck_s"]
                    made.natures = {name: Nature(**nature) for name, nature in line["sinks"].items()}
                case "expected":
                    items = expected[line["sink"]][line["epoch"]] = _items(line["rows"])
                    for place, item in zip(line.get("places", ()), items, strict=False):
                        versions[line["sink"]][place].append(item)
                case "read":
                    made.reads.append(_read(line))
                case "decided":
                    made.decisions.append(Decided(line["epoch"], line["generation"], line["decision"], line["when"]))
                case "settled":
                    made.settled[line["epoch"]] = line["when"]
                case _:
                    made.events.append(line)
        made.expected = dict(expected)
        for sink, by_place in versions.items():
            made.reads = unfolded(made.reads, sink, by_place)
        return made

    def wanted(self, sink: str) -> Counter[str]:
        return Counter(item.row for items in self.expected.get(sink, {}).values() for item in items)

    def delivered(self, sink: str) -> Counter[str] | None:
        """What the last reader found; None if there was none."""
        last = self.last(sink)
        return None if last is None else Counter(item.row for item in last.arrived())

    def last(self, sink: str) -> Read | None:
        return next((read for read in self.reads if read.sink == sink and read.reader == LAST), None)

    def downtimes(self) -> list[tuple[float, float]]:
        """From the end of each life to the next decision: the times in which there was no job to wait for."""
        found = []
        for event in self.events:
            if event["event"] == "ended":
                later = [decided.when for decided in self.decisions if decided.when > event["at"]]
                found.append((float(event["at"]), min(later, default=float(event["at"]))))
        return found

    def first_seen(self, sink: str) -> dict[str, float]:
        """When each row was first visible to a reader, at the latest."""
        seen: dict[str, float] = {}
        for read in self.reads:
            if read.sink == sink:
                for item in read.arrived():
                    seen.setdefault(item.row, read.at)
        return seen


def unfolded(reads: Sequence[Read], sink: str, versions: Mapping[str, Sequence[Item]]) -> list[Read]:
    """What readers of an output saw that shows the latest rows only, as if it had kept all of them.

    Whoever sees the third version of a row knows that the first two were there, at that time at the latest; and a row
    is not gone if a later version has taken its place. What is no version of its place, or an earlier one than before,
    stays as it was seen: the checkers shall find it.
    """
    ranks = {place: {item.row: rank for rank, item in enumerate(items)} for place, items in versions.items()}
    seen: dict[tuple[str, str], int] = {}
    made = []
    for read in reads:
        if read.sink != sink:
            made.append(read)
            continue
        new, gone = dict(read.new), dict(read.gone)
        for place, items in read.new.items():
            rank = max((ranks.get(place, {}).get(item.row, -1) for item in items), default=-1)
            known = seen.get((read.reader, place), -1)
            shown = {item.row for item in items}
            implied = [item for item in versions.get(place, ())[known + 1 : max(rank, 0)] if item.row not in shown]
            new[place] = (*implied, *items)
            seen[read.reader, place] = max(rank, known)
            replaced = {item.row for item in versions.get(place, ())[: max(rank, 0)]}
            gone[place] = tuple(row for row in gone.get(place, ()) if row not in replaced)
        made.append(replace(read, new=new, gone={place: rows for place, rows in gone.items() if rows}))
    return made


def _items(rows: Json) -> tuple[Item, ...]:
    return tuple(Item(row, key) for row, key in rows)


def _read(line: Mapping[str, Json]) -> Read:
    return Read(
        line["reader"],
        line["sink"],
        line["began"],
        line["at"],
        {place: _items(rows) for place, rows in line.get("new", {}).items()},
        {place: tuple(rows) for place, rows in line.get("gone", {}).items()},
    )
