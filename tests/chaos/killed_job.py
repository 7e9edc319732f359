"""A job that is run, killed at a named point, and run again: what all kill matrices share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tallystick import evidence
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import JobProcess, Tally

HERE = Path(__file__).parent
RUN_TIMEOUT_S = 240.0
FAULT_TIMEOUT_S = 90.0


class KilledJob(ABC):
    """``pipeline`` is a script beside this file; ``folder`` has the job's checkpoint and a log of each run."""

    pipeline: str

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """What the script is told."""

    def environment(self) -> Mapping[str, str]:
        return {}

    def start(self, kill: str | None = None, **environment: str) -> JobProcess:
        self.runs += 1
        words = [str(HERE / self.pipeline), *self.arguments()]
        return JobProcess(words, self.folder / f"log-{self.runs}", kill, {**self.environment(), **environment})

    @contextmanager
    def running(self, kill: str | None = None, **environment: str) -> Iterator[JobProcess]:
        process = self.start(kill, **environment)
        try:
            yield process
        finally:
            process.kill()

    def run(self, kill: str | None = None, **environment: str) -> None:
        """One run to its end; it must end as it was told to."""
        with self.running(kill, **environment) as process:
            ended = process.wait(RUN_TIMEOUT_S)
        if kill is None or kill.endswith(":worker"):
            assert ended.status == 0, process.tail()
        else:
            assert ended.killed, f"{kill} was not reached:\n{process.tail()}"

    def killed_at_each(self, kills: Sequence[str]) -> None:
        """Run K is killed at point K, and the next run takes over; the last one comes to the end."""
        for kill in [*kills, None]:
            self.run(kill)

    def await_hold(self, point: str, process: JobProcess) -> None:
        mark = self.folder / "marks" / f"{point}.reached"
        until(lambda: mark.exists() or not process.running(), f"the job to reach {point}", process)
        assert mark.exists(), f"the job ended before {point}:\n{process.tail()}"

    def release(self, point: str) -> None:
        (self.folder / "marks" / f"{point}.released").touch()

    def job_id(self) -> str:
        owner = Journal(PosixStore(self.folder / "checkpoint" / "tallystick")).identity()
        assert owner is not None
        return owner.id


def epochs_for(kills: Sequence[str]) -> int:
    """Enough epochs to reach every kill, and one that nothing disturbs."""
    return max(int(kill.split("@")[1]) for kill in kills) + 2


def until(
    true: Callable[[], bool], what: str, process: JobProcess | None = None, timeout_s: float = FAULT_TIMEOUT_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s in vain for {what}:\n{process.tail() if process else ''}")
        time.sleep(0.02)


def finish(process: JobProcess) -> None:
    """Wait for an end that is none of our doing."""
    ended = process.wait(RUN_TIMEOUT_S)
    assert ended.status == 0, process.tail()


def note(kills: int, sources: Sequence[str], sinks: Mapping[str, Tally]) -> None:
    """As evidence, if somebody gathers it."""
    noted = {name: evidence.Found(found.lost, found.repeated) for name, found in sinks.items()}
    phantoms = sum(found.phantom for found in sinks.values())
    evidence.note(kills, dict.fromkeys(sources, evidence.together(noted.values())), noted, {"phantom": phantoms})
