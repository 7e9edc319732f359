"""From two runs without faults to what a run with faults must show; or why that cannot be said.

A job can be judged if it writes the same rows every time, if rows have an identity, and if the workload is to be
recognised in them. What is missing is an `UnprovenError` in words for the job's author.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tallystick.errors import UnprovenError
from tallystick.prover.history import HistoryFile, Nature
from tallystick.prover.readers import Item
from tallystick.prover.redirect import Subject
from tallystick.prover.rehearsal import Rehearsal, Written
from tallystick.prover.watch import key_of
from tallystick.prover.workload import Workload


@dataclass(frozen=True)
class Expectation:
    """What every round writes into its history before the first fault."""

    rows: Mapping[str, Sequence[Written]]
    natures: Mapping[str, Nature]
    keeps_state: bool
    stuck_s: float
    keys: frozenset[str]

    def write(self, history: HistoryFile) -> None:
        natures = {name: asdict(nature) for name, nature in self.natures.items()}
        history.add("nature", sinks=natures, keeps_state=self.keeps_state, stuck_s=self.stuck_s)
        for sink, rows in self.rows.items():
            by_epoch: dict[int, list[Written]] = {}
            for row in rows:
                by_epoch.setdefault(row.epoch, []).append(row)
            for epoch, written in sorted(by_epoch.items()):
                lines = [[row.row, _key(row, self.keys)] for row in written]
                places = {"places": [row.place for row in written]} if self.natures[sink].latest_only else {}
                history.add("expected", sink=sink, epoch=epoch, rows=lines, **places)

    @property
    def total(self) -> int:
        return sum(len(rows) for rows in self.rows.values())


def expectation_of(subject: Subject, workload: Workload, rehearsal: Rehearsal, stuck_s: float) -> Expectation:
    first, second = rehearsal.runs
    keys = workload.all_keys()
    _need_output(first)
    _need_same(first, second)
    _need_traces(first, keys)
    _need_as_told(subject, workload, first)
    latest_only = subject.latest_only()
    natures = {
        name: Nature(reader.ordered, reader.settles_s, _same_order(first[name], second[name], keys), latest_only[name])
        for name, reader in subject.readers().items()
    }
    return Expectation(first, natures, rehearsal.keeps_state, stuck_s, keys)


def _need_output(run: Mapping[str, Sequence[Written]]) -> None:
    for name, rows in run.items():
        if not rows:
            raise UnprovenError(
                f"the job wrote nothing to the output {name!r} for the workload: there is nothing to count",
                "records that get through the job's steps: a function prove_input(record) in the job file that makes "
                "them, and for windows with a watermark enough of them",
            )


def _need_same(first: Mapping[str, Sequence[Written]], second: Mapping[str, Sequence[Written]]) -> None:
    for name in first:
        one, other = ({(row.epoch, row.row) for row in run[name]} for run in (first, second))
        if one != other:
            shown = min(one ^ other)
            raise UnprovenError(
                f"the job is not deterministic: two runs on the same records, without any fault, wrote different rows "
                f"to the output {name!r}; only one of them wrote {shown[1]} in epoch {shown[0]}",
                "steps that depend on the records alone: no current time, no random numbers or ids of their own",
            )


def _need_traces(run: Mapping[str, Sequence[Written]], keys: frozenset[str]) -> None:
    """Rows in which nothing of the workload is left would look alike whatever was lost."""
    for name, rows in run.items():
        counted = Counter(row.row for row in rows)
        row, count = counted.most_common(1)[0]
        if len(counted) == 1 and len(rows) > 1:
            raise UnprovenError(
                f"the output {name!r} has no ids: every row that the job wrote there is {row}",
                "a column that tells rows apart, such as an id or a key with a count; if the job did not understand "
                "the records, a function prove_input(record) in the job file that makes them as it expects them",
            )
        if count > 1:
            raise UnprovenError(
                f"the output {name!r} has no ids: without any fault the job wrote {count} rows that are all {row}, so "
                "that one that is lost and one that is repeated could not be told apart",
                "a column that tells rows apart, such as an id or a key with a count",
            )


def _need_as_told(subject: Subject, workload: Workload, run: Mapping[str, Sequence[Written]]) -> None:
    told = subject.hooks.expected_rows(workload, subject.sources, subject.outputs)
    for name, rows in told.items():
        found, wanted = Counter(row.row for row in run[name]), Counter(rows)
        if found != wanted:
            missing, strange = min(wanted - found, default=None), min(found - wanted, default=None)
            raise UnprovenError(
                f"without any fault the job does not write to {name!r} what prove_expected says: "
                f"expected and not found {missing}, found and not expected {strange}",
                "a function prove_expected(records) that agrees with the job, or a job that agrees with it",
            )


def _same_order(first: Sequence[Written], second: Sequence[Written], keys: frozenset[str]) -> bool:
    """Whether both runs wrote the rows of each key in the same order."""
    return _orders(first, keys) == _orders(second, keys)


def _orders(rows: Sequence[Written], keys: frozenset[str]) -> dict[str | None, list[str]]:
    orders: dict[str | None, list[str]] = {}
    for row in rows:
        orders.setdefault(_key(row, keys), []).append(row.row)
    return orders


def _key(row: Written, keys: frozenset[str]) -> str | None:
    return key_of(Item(row.row, row.key), keys)
