"""What a checkpoint is, epoch by epoch, from the journal and Spark's files. Pure: lines and names in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.cli.ledger import Epoch
from tallystick.records import Decision, Json

FINISHED = "finished"
IN_DOUBT = "in doubt"
ABORTED = "aborted"
RUNNING = "running"

STEPS = ("settle_s", "prepare_s", "decide_s", "commit_s")


@dataclass(frozen=True)
class Cut:
    """One checkpoint in a list. ``kept`` says that Spark's logs still have it, so that it can be shown in full."""

    epoch: int
    status: str
    records: int = 0
    refused: int = 0
    attempts: int = 0
    aborted: int = 0
    generation: int | None = None
    triggered_at: float | None = None
    duration_s: float | None = None
    durations: Mapping[str, float] = field(default_factory=dict)
    bytes: int = 0
    kept: bool = False

    def to_json(self) -> Json:
        return {
            "epoch": self.epoch,
            "status": self.status,
            "records": self.records,
            "refused": self.refused,
            "duration_s": self.duration_s,
            "durations": dict(self.durations),
            "triggered_at": self.triggered_at,
            "bytes": self.bytes,
            "attempts": self.attempts,
            "aborted": self.aborted,
            "generation": self.generation,
            "kept": self.kept,
        }


def after_decisions(lines: Iterable[Json]) -> dict[int, Mapping[str, Json]]:
    """What epochs did after their decision, by epoch: each is told by the next decision of the same driver."""
    told = (line.get("facts", {}).get("before") for line in lines if "decision" in line)
    return {before["epoch"]: before for before in told if before}


def cut(epoch: Epoch, after: Mapping[str, Json] | None, settled: bool, written_bytes: int, kept: bool) -> Cut:
    """One line of the list. A duration that nobody has measured to the end is that until the decision."""
    known = {**epoch.facts, **{name: value for name, value in (after or {}).items() if name != "epoch"}}
    durations = {name: known[name] for name in STEPS if isinstance(known.get(name), int | float)}
    return Cut(
        epoch=epoch.epoch,
        status=status(epoch, settled),
        records=epoch.records,
        refused=sum(epoch.refused.values()),
        attempts=epoch.attempts,
        aborted=epoch.aborted,
        generation=epoch.generation,
        triggered_at=known.get("at"),
        duration_s=known.get("total_s", known.get("until_decision_s")),
        durations=durations,
        bytes=written_bytes,
        kept=kept,
    )


def status(epoch: Epoch, settled: bool) -> str:
    if settled:
        return FINISHED
    return IN_DOUBT if epoch.decision == Decision.COMMIT.value else ABORTED


def by_partition(offset: Json) -> dict[str, Json]:
    """A source's offset by partition. Kafka has topics and partitions; a source without partitions has one, 0."""
    if not isinstance(offset, Mapping):
        return {"0": offset}
    if len(offset) == 1:
        [(name, only)] = offset.items()
        if isinstance(only, Mapping):
            return {str(partition): value for partition, value in only.items()}
        return {"0": only} if name in ("offset", "logOffset") else {str(name): only}
    flat: dict[str, Json] = {}
    for name, value in offset.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{partition}": one for partition, one in value.items()}
        else:
            flat[str(name)] = value
    return flat


def sources(offsets: Sequence[Json], names: Sequence[str]) -> list[Json]:
    """Every source with its offsets, by partition and as Spark logged it."""
    fitting = names if len(names) == len(offsets) else [f"source-{number}" for number in range(len(offsets))]
    return [
        {"name": name, "offsets": by_partition(offset), "logged": offset}
        for name, offset in zip(fitting, offsets, strict=True)
    ]


def pairs(values: Mapping[str, Json]) -> str:
    """``(0,1000) (1,998)``"""
    return " ".join(f"({name},{_plain(value)})" for name, value in values.items())


def keyed(sample: Iterable[Json]) -> str:
    """``(app1,50000) (app2,10000)``: the fields of key and value without their names."""
    return " ".join(f"({_plain(entry['key'])},{_plain(entry['value'])})" for entry in sample)


def _plain(value: Json) -> str:
    if isinstance(value, Mapping):
        return ",".join(_plain(inner) for inner in value.values())
    if isinstance(value, list):
        return f"[{' '.join(_plain(inner) for inner in value)}]"
    return "null" if value is None else str(value)
