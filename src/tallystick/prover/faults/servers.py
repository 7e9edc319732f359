"""Servers and the way to them: killed and started again, connections cut, slowed, half open."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.prover.faults.base import Fault, World
from tallystick.servers.tcp_proxy import Way


@dataclass(frozen=True)
class ServerDown(Fault):
    """SIGKILL, and a start on the same data and address."""

    kind = "server-down"

    server: str
    after_s: float
    lasts_s: float
    early: bool = False

    def inject(self, world: World) -> None:
        world.servers[self.server].kill()
        world.history.add("killed", life=world.life, what=self.server, where="a random time")

    def heal(self, world: World) -> None:
        if not world.servers[self.server].running:
            world.servers[self.server].start()


@dataclass(frozen=True)
class Network(Fault):
    """Between the job and a server; the readers come by another way. ``how``: cut, slow, or half-open (answers are
    lost, requests arrive)."""

    kind = "network"

    server: str
    how: str
    after_s: float
    lasts_s: float
    early: bool = False

    def inject(self, world: World) -> None:
        proxy = world.proxies[self.server]
        if self.how == "cut":
            proxy.cut()
        elif self.how == "slow":
            proxy.slow(0.1)
        else:
            proxy.hold(Way.TO_CLIENT)

    def heal(self, world: World) -> None:
        world.proxies[self.server].heal()
