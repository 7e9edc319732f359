"""Run the demonstration job in each mode: killed at one named point after the other, restarted, run to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.demo.job import checkpoint_of, expected_updates
from tallystick.demo.stage import Stage, Update
from tallystick.errors import TallystickError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import JobProcess, Tally, tally
from tallystick.records import Mode, Record

KILLS = ("inside-commit", "after-decide", "after-pre-commit", "before-return")
"""Half published, rolled forward, rolled back, all published. The first one alone tells the three modes apart."""
PER_EPOCH = 250
SETTLE_EPOCHS = 3


@dataclass
class Lane:
    """One mode's progress, as the live view shows it."""

    mode: Mode
    folder: Path
    stage: Stage
    kills: list[str] = field(default_factory=list)
    phase: str = "waiting"
    delivered: list[Update] = field(default_factory=list)
    result: Tally | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    process: JobProcess | None = None

    def stop(self) -> None:
        """End the run that is under way, and start no other."""
        self.stopped.set()
        if self.process is not None:
            self.process.kill()

    def records(self) -> tuple[Record, ...]:
        """What this lane's journal says just now. Read-only, beside the running job."""
        return Journal(PosixStore(checkpoint_of(self.folder) / "tallystick")).records()


def lanes(stage: Stage, folder: Path) -> list[Lane]:
    return [Lane(mode, folder / mode.value, stage) for mode in Mode]


def views_for(kills: Sequence[str]) -> int:
    """As many as it takes to reach every kill, and some epochs that nothing disturbs."""
    return (len(kills) + SETTLE_EPOCHS) * PER_EPOCH


def run_lane(lane: Lane, kills: Sequence[str], timeout_s: float = 240) -> None:
    """Kill run K at point K of epoch K+1; the last run goes to the end. Fills in what came out."""
    views = views_for(kills)
    lane.folder.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "tallystick.demo.job", lane.stage.name, lane.mode.value, str(lane.folder)]
    arguments += [str(views), str(PER_EPOCH)]
    for number, point in enumerate([*kills, None]):
        kill = None if point is None else f"{point}@{number + 1}"
        lane.phase = f"start {number + 1}" + (f", to be killed {kill}" if kill else ", to the end")
        if lane.stopped.is_set():
            return
        lane.process = process = JobProcess(arguments, lane.folder / "job.log", kill)
        try:
            ended = process.wait(timeout_s)
        finally:
            process.kill()
        if lane.stopped.is_set():
            return
        if ended.killed and kill is not None:
            lane.kills.append(kill)
        elif kill is not None or ended.status != 0:
            raise TallystickError(
                f"{lane.mode.value}: expected {kill or 'a clean end'}, found exit status "
                f"{ended.status}:\n{process.tail()}"
            )
    lane.phase = "counting"
    lane.delivered = lane.stage.delivered(lane.mode, lane.folder)
    lane.result = tally(expected_updates(views, PER_EPOCH), lane.delivered)
    lane.phase = "done"


def run_all(running: Sequence[Lane], kills: Sequence[str], at_once: int, watch: Callable[[], None]) -> None:
    """All lanes, a few at once; ``watch`` is called again and again until they are done."""
    for stage in {lane.stage for lane in running}:
        stage.prepare(views_for(kills))
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        futures = [pool.submit(run_lane, lane, kills) for lane in running]
        try:
            while not all(future.done() for future in futures):
                watch()
        except BaseException:
            for lane in running:
                lane.stop()
            raise
        for future in futures:
            future.result()


def as_promised(lane: Lane) -> bool:
    """Exactly-once is exact, at-least-once repeated but lost nothing, at-most-once lost but repeated nothing."""
    if lane.result is None or lane.result.phantom:
        return False
    lost, repeated = lane.result.lost > 0, lane.result.repeated > 0
    return {
        Mode.EXACTLY_ONCE: not lost and not repeated,
        Mode.AT_LEAST_ONCE: not lost and repeated,
        Mode.AT_MOST_ONCE: lost and not repeated,
    }[lane.mode]
