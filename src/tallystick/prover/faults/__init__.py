"""What can go wrong on purpose. Each fault is a value, drawn from the seed: set up, injected, healed.

=========== ============ =====================================================================================
family      fault        what happens
=========== ============ =====================================================================================
kill-points `KillAt`     SIGKILL at a named point of the protocol: the whole job, or one Python worker
random      `KillLater`  SIGKILL at a random time: the whole job, or one Python worker
random      `KillExecutor` SIGKILL of an executor at a random time, on a cluster
random      `Pause`      SIGSTOP of the whole job, for a while, then SIGCONT
random      `Takeover`   the job is stopped like a machine that hangs; a second driver takes over; the first wakes up
random      `Clock`      the job's wall clock is ahead or behind
random      `DiskFull`   the disk under an output is full for a while
servers     `ServerDown` a server is killed, and started again after a while
network     `Network`    connections to a server are cut, slowed, or half open for a while
=========== ============ =====================================================================================
"""

from tallystick.prover.faults.base import Fault, World
from tallystick.prover.faults.draw import FAMILIES, Schedule, draw

__all__ = ["FAMILIES", "Fault", "Schedule", "World", "draw"]
