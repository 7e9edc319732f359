"""SIGSTOP: a job that hangs like a machine without power to think, and wakes up later, perhaps too late."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.prover.faults.base import Fault, World

TAKEOVER_S = 240.0


@dataclass(frozen=True)
class Pause(Fault):
    """The whole job, driver, JVM and workers, takes no step for a while. Longer than a server's patience with open
    transactions, and what it had prepared has expired when it wakes up."""

    kind = "pause"

    after_s: float
    lasts_s: float

    def inject(self, world: World) -> None:
        _stop(world)

    def heal(self, world: World) -> None:
        world.job.resume()


@dataclass(frozen=True)
class Takeover(Fault):
    """The job is stopped; a second driver takes over and works to the end of the input; then the first wakes up.

    The lock of the checkpoint is taken away from the first, as on a file system without locks: what is left is the
    fencing of the journal.
    """

    kind = "takeover"

    after_s: float

    def inject(self, world: World) -> None:
        _stop(world)
        (world.place.journal / "lock").unlink(missing_ok=True)
        if world.second is None:
            return
        second = world.second()
        try:
            ended = second.wait(TAKEOVER_S)
        finally:
            second.kill()
        world.history.add("takeover", life=world.life, status=ended.status)

    def heal(self, world: World) -> None:
        world.job.resume()


def _stop(world: World) -> None:
    world.history.add("stopped", life=world.life, pid=world.job.pid)
    world.job.pause()
