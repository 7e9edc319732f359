"""Nobody starts the job again for a while: so long that servers give up on what it left open."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tallystick.prover.faults.base import Fault, World


@dataclass(frozen=True)
class Downtime(Fault):
    """Between the life before and this one. Longer than a transaction's timeout: it expires."""

    kind = "downtime"

    lasts_s: float

    @property
    def delay_s(self) -> None:
        return None

    def set_up(self, world: World) -> None:
        world.history.add("down", life=world.life, fault=self.to_json())
        time.sleep(self.lasts_s)

    def inject(self, world: World) -> None:
        """It is over when the job starts."""
