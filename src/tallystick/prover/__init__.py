"""Proof by killing: run a job in a process of its own, kill it at a named point, restart it, count what came out."""

from tallystick.prover.process import JobProcess, KilledRun
from tallystick.prover.tally import Tally, tally

__all__ = ["JobProcess", "KilledRun", "Tally", "tally"]
