"""A campaign: a rehearsal without faults, then round after round with them, until there is enough evidence.

::

    FOLDER/rehearsal.json          what the job writes without faults
    FOLDER/input/                  the workload, if the job reads files
    FOLDER/servers/                servers of the prover's own
    FOLDER/round-N/history.jsonl   what happened in a round; beside it checkpoint, output, and a log per life
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.errors import TallystickError, UnprovenError
from tallystick.prover.expectation import Expectation, expectation_of
from tallystick.prover.faults.draw import Means, Schedule, draw
from tallystick.prover.faults.machine import clock_library
from tallystick.prover.life import LifePlan, subject_of
from tallystick.prover.place import Place
from tallystick.prover.process import JobProcess
from tallystick.prover.redirect import Subject
from tallystick.prover.rehearsal import Rehearsal
from tallystick.prover.report.result import Result, RoundResult, unproven
from tallystick.prover.round import Grounds, Round
from tallystick.prover.workload import Workload
from tallystick.servers.base import Server
from tallystick.servers.registry import KINDS
from tallystick.servers.spark_cluster import SparkCluster
from tallystick.servers.tcp_proxy import Proxied, TcpProxy

REHEARSAL_S = 600.0
LIVES_PER_ROUND = 7


@dataclass(frozen=True)
class Order:
    """What is asked for. ``kills`` and ``for_s`` end the campaign when either is reached."""

    spec: str
    faults: str = "kill-points"
    kills: int = 20
    for_s: float | None = None
    seed: int = 1
    at_once: int = 1
    cluster: bool = False
    records_per_epoch: int = 40
    workers: int = 2
    rate: float | None = None
    """Records per second and source; None: as fast as the job can."""
    stuck_s: float = 60.0
    replay: Schedule | None = None

    @property
    def lives(self) -> int:
        """Per round: not more than it takes to reach the kills."""
        per_life = self.workers + 1 if self.faults == "kill-points" else 1
        return max(1, min(LIVES_PER_ROUND, -(-self.kills // (per_life * self.at_once))))


@dataclass
class Progress:
    """For whoever watches: phase, rounds, kills so far."""

    phase: str = "loading the job"
    rounds: list[Round] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def kills(self) -> int:
        return sum(each.kills for each in self.rounds)


def prove(order: Order, folder: Path, watch: Callable[[Progress], None]) -> Result:
    """The whole campaign. `watch` is called several times a second. A job that cannot be proven gets *unknown*."""
    progress = Progress()
    subject = subject_of(order.spec)
    try:
        means = _means(order, subject, folder)
        plan = _plan(order, folder, means)
        with _servers(order, subject, folder, progress, watch) as grounds_of:
            grounds = grounds_of(plan)
            expected = _rehearsed(order, grounds, folder, progress, watch)
            return _rounds(order, grounds, expected, means, progress, watch)
    except UnprovenError as reason:
        return unproven(order.spec, subject.job, order.seed, str(reason), reason.needed)


def _means(order: Order, subject: Subject, folder: Path) -> Means:
    """Also finds out, before anything is started, whether every source and sink can take part."""
    subject.latest_only()
    readers, servers = subject.readers().values(), subject.servers(disturbed=True)
    return Means(
        servers=tuple(kind for kind in servers if _server(folder, kind).keeps_data),
        proxied=tuple(kind for kind in servers if issubclass(KINDS[kind], Proxied)),
        clock=clock_library() is not None and not order.cluster,
        executors=order.cluster,
        small_disk=os.geteuid() == 0 and all(reader.on_disk for reader in readers),
        expires=any(reader.expires for reader in readers),
    )


def _server(folder: Path, kind: str) -> Server:
    return KINDS[kind](folder / "servers" / kind)


def _plan(order: Order, folder: Path, means: Means) -> LifePlan:
    """Rounds differ in their faults, not in their work: one rehearsal is enough for all of them."""
    first = order.replay or draw(order.seed, order.faults, order.lives, means, order.workers)
    workload = Workload(order.seed, first.epochs, order.records_per_epoch)
    pace_s = None if order.rate is None else order.records_per_epoch / order.rate
    return LifePlan(_absolute(order.spec), workload, Place(str(folder), "rehearsal"), pace_s=pace_s)


def _absolute(spec: str) -> str:
    """Lives may run in another folder."""
    path, colon, name = spec.rpartition(":")
    whole = Path(spec)
    return str(whole.resolve()) if whole.exists() or not colon else f"{Path(path).resolve()}:{name}"


@contextmanager
def _servers(
    order: Order, subject: Subject, folder: Path, progress: Progress, watch: Callable[[Progress], None]
) -> Iterator[Callable[[LifePlan], Grounds]]:
    """Servers of the prover's own, on loopback, each behind a proxy where there is one; stopped at the end."""
    servers: dict[str, Server] = {}
    proxies: dict[str, TcpProxy] = {}
    for_job: dict[str, str] = {}
    with ExitStack() as running:
        for kind in subject.servers():
            progress.phase = f"starting a server: {kind}"
            watch(progress)
            server = servers[kind] = running.enter_context(_server(folder, kind))
            running.enter_context(_environment(server.environment))
            for_job[kind] = server.address
            if isinstance(server, Proxied):
                proxies[kind] = running.enter_context(server.proxy())
                for_job[kind] = server.proxied_address

        if order.cluster:
            progress.phase = "starting a cluster"
            watch(progress)
            servers["spark"] = running.enter_context(SparkCluster(folder / "servers" / "spark"))

        def grounds(plan: LifePlan) -> Grounds:
            place = Place(
                plan.place.folder, plan.place.run, for_job, {kind: server.address for kind, server in servers.items()}
            )
            master = servers["spark"].address if order.cluster else plan.master
            return Grounds(subject, replace(plan, place=place, master=master), servers, proxies)

        yield grounds


@contextmanager
def _environment(needed: Mapping[str, str]) -> Iterator[None]:
    """For readers in this process, and for the jobs, which inherit it."""
    before = {name: os.environ.get(name) for name in needed}
    os.environ.update(needed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _rehearsed(
    order: Order, grounds: Grounds, folder: Path, progress: Progress, watch: Callable[[Progress], None]
) -> Expectation:
    progress.phase = "rehearsing without faults"
    result = folder / "rehearsal.json"
    arguments = ["-m", "tallystick.prover.rehearsal", grounds.plan.to_json(), str(result)]
    process = JobProcess(arguments, folder / "rehearsal.log")
    deadline = time.monotonic() + REHEARSAL_S
    try:
        while process.running() and time.monotonic() < deadline:
            watch(progress)
    finally:
        process.kill()
    if not result.exists():
        raise UnprovenError(
            f"the job did not get through its workload without faults:\n{process.tail()}",
            "a job that runs: try it with tallystick run, and with prove_input(record) if it does not understand the "
            "prover's records",
        )
    found = json.loads(result.read_text())
    if "rehearsal" not in found:
        why = found.get("unproven") or f"without any fault the job failed on the workload: {found['failed']}"
        needed = found.get("needed") or (
            "a job that takes the prover's records: a function prove_input(record) in the job file makes them as the "
            "job expects them"
        )
        raise UnprovenError(why, needed)
    rehearsal = Rehearsal.from_json(found["rehearsal"])
    return expectation_of(grounds.subject, grounds.plan.workload, rehearsal, order.stuck_s)


def _rounds(
    order: Order,
    grounds: Grounds,
    expected: Expectation,
    means: Means,
    progress: Progress,
    watch: Callable[[Progress], None],
) -> Result:
    began_s = time.monotonic()
    lock = threading.Lock()
    numbers = iter(range(1, 1_000_000))
    chance = random.Random(order.seed)

    def enough() -> bool:
        if grounds.stopped.is_set() or (order.replay is not None and progress.rounds):
            return True
        if order.for_s is not None:
            return time.monotonic() - began_s > order.for_s
        return bool(progress.rounds) and _planned(progress) >= order.kills

    def work() -> None:
        while True:
            with lock:
                if enough():
                    return
                number = next(numbers)
                schedule = order.replay or _schedule(order, number, chance, means, grounds)
                this = Round(number, grounds, schedule, expected.write)
                progress.rounds.append(this)
            this.run()

    progress.phase = "killing"
    with ThreadPoolExecutor(max_workers=order.at_once) as pool:
        workers = [pool.submit(work) for _ in range(order.at_once)]
        try:
            while not all(worker.done() for worker in workers):
                watch(progress)
        except BaseException:
            for each in progress.rounds:
                each.stop()
            raise
        for worker in workers:
            worker.result()
    progress.phase = "judging"
    watch(progress)
    judged = tuple(
        RoundResult.of(each.number, each.history_path, each.schedule, each.finished) for each in progress.rounds
    )
    return Result.of(order.spec, grounds.subject, order.seed, order.faults, judged)


def _schedule(order: Order, number: int, chance: random.Random, means: Means, grounds: Grounds) -> Schedule:
    """The first round has the seed itself; the others have seeds drawn from it."""
    seed = order.seed if number == 1 else chance.randrange(1 << 31)
    return draw(seed, order.faults, order.lives, means, order.workers, grounds.plan.workload.epochs)


def _planned(progress: Progress) -> int:
    """Kills that happened, and those of rounds under way that will."""
    total = 0
    for each in progress.rounds:
        total += each.kills if each.doing == "done" else max(each.kills, each.planned_kills)
    return total


def need_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise TallystickError(f"{folder} is not empty: choose a new folder for the proof")
    folder.mkdir(parents=True, exist_ok=True)
