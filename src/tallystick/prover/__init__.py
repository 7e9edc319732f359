"""Proof by killing: run a job in processes of its own, kill them, start them again, judge what readers saw."""

from tallystick.prover.feeds.base import Feed
from tallystick.prover.process import JobProcess, KilledRun
from tallystick.prover.readers.base import Item, Reader
from tallystick.prover.tally import Tally, tally
from tallystick.prover.workload import Numbered

__all__ = ["Feed", "Item", "JobProcess", "KilledRun", "Numbered", "Reader", "Tally", "tally"]
