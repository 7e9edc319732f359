"""One round: the job from an empty checkpoint to the end of its input, through all the faults of a schedule."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick import killpoints
from tallystick.errors import SetupError, TallystickError
from tallystick.prover.faults.base import Fault, World
from tallystick.prover.faults.draw import SHORT_TIMEOUT_S, Schedule
from tallystick.prover.faults.kill import KillAt, KillLater, killed_workers
from tallystick.prover.history import HistoryFile
from tallystick.prover.life import LifePlan
from tallystick.prover.process import JobProcess
from tallystick.prover.readers import Reader
from tallystick.prover.redirect import Subject
from tallystick.prover.watch import JournalWatch, Watcher
from tallystick.servers.base import Server
from tallystick.servers.tcp_proxy import TcpProxy

LIFE_S = 300.0
LAST_LIVES = 3
"""How often the job may fail by itself after the last fault, before the round gives up."""
SMALL_DISK = "24m"


@dataclass
class Grounds:
    """What all rounds of a campaign share."""

    subject: Subject
    plan: LifePlan
    servers: Mapping[str, Server] = field(default_factory=dict)
    proxies: Mapping[str, TcpProxy] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)


class Round:
    """``write_expected`` notes in the history what the job does without faults."""

    def __init__(
        self, number: int, grounds: Grounds, schedule: Schedule, write_expected: Callable[[HistoryFile], None]
    ) -> None:
        self.number, self.grounds, self.schedule = number, grounds, schedule
        timeout_s = SHORT_TIMEOUT_S if schedule.wants_expiry else None
        self.place = replace(grounds.plan.place, run=f"round-{number}", timeout_s=timeout_s)
        self.doing = "waiting"
        self.finished = False
        self._write_expected = write_expected
        self._plan = replace(grounds.plan, place=self.place)
        self._history: HistoryFile | None = None
        self._process: JobProcess | None = None

    @property
    def kills(self) -> int:
        """How many processes of the job have been killed so far."""
        return 0 if self._history is None else self._history.kills

    @property
    def planned_kills(self) -> int:
        return sum(isinstance(fault, KillAt | KillLater) for life in self.schedule.lives for fault in life)

    @property
    def history_path(self) -> Path:
        return self.place.own / "history.jsonl"

    def run(self) -> None:
        """All lives. Afterwards the history is whole; `finished` says whether the job came to the end of its input."""
        self.place.own.mkdir(parents=True)
        self._history = history = HistoryFile(self.history_path)
        try:
            with ExitStack() as around:
                if self.schedule.wants_small_disk:
                    around.enter_context(small_disk(self.place.own / "output"))
                history.add("begun", schedule=self.schedule.to_json(), plan=self._plan.to_json())
                self._write_expected(history)
                self._prepare(history)
                around.callback(self.grounds.subject.conclude, self.place)
                keys = self._plan.workload.all_keys()
                with Watcher(self.place, history, self._readers, keys) as watcher:
                    self._live(history, watcher)
                    self.doing = "reading"
                    watcher.finish()
        finally:
            history.close()
        self.doing = "done"

    def stop(self) -> None:
        """End the life that is under way, and start no other."""
        self.grounds.stopped.set()
        if self._process is not None:
            self._process.kill()

    def _prepare(self, history: HistoryFile) -> None:
        workload, sources = self._plan.workload, self.grounds.subject.sources
        for name in sources:
            numbers = (
                workload.record(0, name, sources).number,
                workload.record(len(workload) - 1, name, sources).number,
            )
            history.add("sent", source=name, records=len(workload), first=numbers[0], last=numbers[1])
        self.grounds.subject.prepare(workload, self.place)

    def _readers(self) -> Mapping[str, Reader]:
        return self.grounds.subject.opened(self.place)

    def _live(self, history: HistoryFile, watcher: Watcher) -> None:
        quiet: list[tuple[Fault, ...]] = [()] * LAST_LIVES
        for number, faults in enumerate([*self.schedule.lives, *quiet], 1):
            if self.grounds.stopped.is_set():
                return
            named = ", ".join(map(_name, faults)) or "to the end"
            self.doing = f"life {number}: {named}"
            if self._one_life(number, faults, history, watcher):
                self.finished = True
                self._note_missed(number, history)
                return

    def _note_missed(self, lived: int, history: HistoryFile) -> None:
        """The job came to the end of its input before these lives: a schedule that is too long for its epochs."""
        for number, faults in enumerate(self.schedule.lives[lived:], lived + 1):
            for fault in faults:
                history.add("missed", life=number, fault=fault.to_json(), why="the input was used up before")

    def _one_life(self, number: int, faults: Sequence[Fault], history: HistoryFile, watcher: Watcher) -> bool:
        """True if the job came to the end of its input."""
        world = World(number, self.place, history, self.grounds.servers, self.grounds.proxies)
        for fault in faults:
            fault.set_up(world)
        world.environment[killpoints.ONCE] = str(world.kills_file)
        before = watcher.journal.generations, watcher.journal.commits
        self._process = world.process = process = self._start(number, world.armed, world.environment)
        world.second = lambda: self._start(number, (), {}, "-second")
        history.add("started", life=number, pid=process.pid, faults=[fault.to_json() for fault in faults])
        over = threading.Event()
        timed = [fault for fault in faults if fault.delay_s is not None]
        with ThreadPoolExecutor(max_workers=max(1, len(timed))) as pool:
            disturbing = [pool.submit(self._disturb, fault, world, watcher.journal, before, over) for fault in timed]
            try:
                ended = process.wait(LIFE_S + sum(fault.duration_s for fault in faults))
            except TallystickError as failure:
                history.add("failed", life=number, why=str(failure))
                return False
            finally:
                over.set()
                process.kill()
        for each in disturbing:
            each.result()
        self._note_kills(world, ended.killed, faults)
        history.add("ended", life=number, status=ended.status, killed=ended.killed)
        if ended.status > 0:  # nobody killed it: it gave up
            history.add("failed", life=number, why=process.tail())
        watcher.await_look()
        return ended.status == 0

    def _note_kills(self, world: World, killed: bool, faults: Sequence[Fault]) -> None:
        at_points = killed_workers(world)
        for armed, at, pid in at_points:
            point, what = armed.partition("@")[0], armed.partition(":")[2]
            world.history.add("killed", life=world.life, what=what, where=point, pid=pid, when=at)
        whole = [fault for fault in faults if isinstance(fault, KillAt) and fault.whole]
        if killed and whole:
            world.history.add("killed", life=world.life, what="driver", where=whole[-1].point, pid=world.job.pid)
        reached = {armed for armed, _, _ in at_points}
        for fault in faults:
            if isinstance(fault, KillAt) and not (killed if fault.whole else str(fault) in reached):
                why = "the job did not come to this point in this epoch"
                world.history.add("missed", life=world.life, fault=fault.to_json(), why=why)

    def _start(self, number: int, armed: Sequence[str], environment: Mapping[str, str], name: str = "") -> JobProcess:
        log = self.place.own / f"life-{number}{name}.log"
        arguments = ["-m", "tallystick.prover.life", self._plan.to_json()]
        return JobProcess(arguments, log, ",".join(armed) or None, environment)

    def _disturb(
        self, fault: Fault, world: World, journal: JournalWatch, before: tuple[int, int], over: threading.Event
    ) -> None:
        """Wait for a sign of this life, then for the fault's time; heal in any case."""
        generations, commits = before
        while journal.generations <= generations if fault.is_early else journal.commits <= commits:
            if over.wait(0.05):
                return
        if over.wait(fault.delay_s or 0.0):
            return
        world.history.add("injected", life=world.life, fault=fault.to_json())
        try:
            fault.inject(world)
            over.wait(fault.duration_s)
        except TallystickError as failure:
            world.history.add("failed", life=world.life, why=f"{fault.kind}: {failure}")
        finally:
            fault.heal(world)
            world.history.add("healed", life=world.life, fault=fault.to_json())


def _name(fault: Fault) -> str:
    return str(fault) if isinstance(fault, KillAt) else fault.kind


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own, small enough to be filled. Needs root."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        raise SetupError(f"no small disk could be mounted at {folder}: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        deadline = time.monotonic() + 10
        while subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise SetupError(f"{folder} is a small disk that could not be unmounted: umount {folder}")
            time.sleep(0.2)
