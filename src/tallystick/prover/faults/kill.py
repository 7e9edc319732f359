"""SIGKILL: at a named point of the protocol, or at a random time."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from tallystick.prover.faults.base import Fault, World
from tallystick.prover.process import children, command_line, descendants
from tallystick.servers.spark_cluster import SparkCluster


@dataclass(frozen=True)
class KillAt(Fault):
    """At ``point`` of ``epoch``: the whole job, or only the worker that reaches it, or its executor, which takes a
    cluster. The job kills itself."""

    kind = "kill-at"

    point: str
    epoch: int
    worker: bool = False
    executor: bool = False

    def __str__(self) -> str:
        return f"{self.point}@{self.epoch}" + ("" if self.whole else f":{self.whom}")

    @property
    def whom(self) -> str:
        return "worker" if self.worker else "executor" if self.executor else "driver"

    @property
    def whole(self) -> bool:
        return self.whom == "driver"

    @property
    def delay_s(self) -> None:
        return None

    def set_up(self, world: World) -> None:
        world.armed.append(str(self))

    def inject(self, world: World) -> None:
        """It happens by itself; `killed_workers` and the job's exit status say whether it did."""


@dataclass(frozen=True)
class KillLater(Fault):
    """At a random time: the whole job with its JVM, or one Python worker of it."""

    kind = "kill-later"

    after_s: float
    worker: bool = False
    early: bool = False

    def inject(self, world: World) -> None:
        victims = python_workers(world.job.pid) if self.worker else []
        if self.worker and not victims:
            world.history.add("missed", life=world.life, fault=self.to_json(), why="no worker ran just then")
            return
        if self.worker:
            with suppress(ProcessLookupError):  # it ended by itself: then nothing was killed
                os.kill(victims[0], signal.SIGKILL)
                world.history.add("killed", life=world.life, what="worker", where="a random time", pid=victims[0])
            return
        if world.job.running():
            world.job.kill()
            world.history.add("killed", life=world.life, what="driver", where="a random time", pid=world.job.pid)


@dataclass(frozen=True)
class KillExecutor(Fault):
    """At a random time: the JVM of an executor, with the workers in it. Only on a cluster."""

    kind = "kill-executor"

    after_s: float
    which: int = 0

    def inject(self, world: World) -> None:
        cluster = world.servers["spark"]
        executors = cluster.executors() if isinstance(cluster, SparkCluster) else []
        if not executors or not isinstance(cluster, SparkCluster):
            world.history.add("missed", life=world.life, fault=self.to_json(), why="no executor ran just then")
            return
        victim = executors[self.which % len(executors)]
        cluster.kill_executor(victim)
        world.history.add("killed", life=world.life, what="executor", where="a random time", pid=victim.pid)


def killed_workers(world: World) -> list[tuple[str, float, int]]:
    """What workers of this life left behind when they died at a point: the fault as it was armed, time, process."""
    if not world.kills_file.exists():
        return []
    lines = [line.split() for line in world.kills_file.read_text().splitlines()]
    return [(armed, float(at), int(pid)) for armed, at, pid in lines]


def python_workers(driver: int) -> list[int]:
    """The processes in which tasks of this driver run: forked by Spark's daemon, which the JVM started."""
    daemons = [pid for pid in descendants(driver) if "pyspark.daemon" in command_line(pid)]
    forked = {child for pid in daemons for child in children(pid)}
    return [pid for pid in daemons if pid in forked]
