"""Visit every state that some drivers, servers and faults can reach together, and check the invariants in each.

``python tests/protocol/configurations.py`` runs all configurations and prints what was visited.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from invariants import ViolationError, broken
from programs import Programs, Protocol
from steps import UNCLAIMED, Bounds, Budget, Driver, Moves, State, Step
from world import Rules, World


@dataclass
class Stats:
    """What was visited, and how many steps broke each invariant that was not promised."""

    states: int = 0
    transitions: int = 0
    closures: int = 0
    places: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        seen = "".join(f", {name} in {count}" for name, count in sorted(self.seen.items()))
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.closures:,} closures, "
            f"{self.places:,} places of a driver, {self.seconds:.1f} s{seen}"
        )


class Explorer:
    """Breadth first, so that the trace of a violation is a shortest one."""

    def __init__(self, protocol: Protocol, rules: Rules, bounds: Bounds, promises: frozenset[str]) -> None:
        self.rules, self.bounds, self.promises = rules, bounds, promises
        self.programs = Programs(protocol)
        self.moves = Moves(self.programs, rules, bounds)
        self.stats = Stats()
        self._came_from: dict[State, tuple[State, Step] | None] = {}
        self._closed: set[State] = set()

    def run(self) -> Stats:
        started = time.monotonic()
        first = State(World(), (), self.bounds.budget)
        self._came_from[first] = None
        todo = deque([first])
        while todo:
            state = todo.popleft()
            if not state.drivers:
                self._close(state)
            for step, after in self.moves.all(state):
                self.stats.transitions += 1
                self._check(state, step, after, lambda: self._trace(state))  # noqa: B023 - called at once or never
                if after not in self._came_from:
                    self._came_from[after] = (state, step)
                    todo.append(after)
        self.stats.states = len(self._came_from)
        self.stats.places = len(self.programs.places)
        self.stats.seconds = time.monotonic() - started
        return self.stats

    def _close(self, dead: State) -> None:
        """Nobody lives and all faults are over: a fresh driver must put everything right by itself.

        It runs every epoch that is left and one more, as a stream goes on; its last sweep comes after whatever
        late tasks did, so nothing may stay open. From a state that another closure passed there is nothing new.
        """
        self.stats.closures += 1
        epochs = self.bounds.epochs + 1
        newcomer = Driver(UNCLAIMED, dead.world.commits)
        now = State(dead.world._replace(staging=frozenset()), (newcomer,), Budget())
        steps: list[Step] = []

        def trace() -> list[str]:
            return [*self._trace(dead), "(no more faults)", *map(str, steps)]

        while now.drivers and now not in self._closed:
            self._closed.add(now)
            ((step, after),) = self.moves.act(now, now.drivers[0], epochs, faults=False)
            self._check(now, step, after, trace)
            steps.append(step)
            now = after
        if now.drivers:
            return
        if now.world.commits < epochs:
            self._broken("stuck", f"a fresh driver ended before commits/{now.world.commits} was written", trace)
        elif now.world.open:
            names = ", ".join(sorted(transaction.name for transaction in now.world.open))
            self._broken("open", f"readers hang behind {names}", trace)

    def _check(self, before: State, step: Step, after: State, trace: Callable[[], list[str]]) -> None:
        if after.world is before.world:
            return
        for invariant, found in broken(self.rules, before.world, after.world, step.what == "sweeps"):
            self._broken(invariant, found, lambda: [*trace(), str(step)])

    def _broken(self, invariant: str, found: str, trace: Callable[[], list[str]]) -> None:
        if invariant in self.promises:
            raise ViolationError(invariant, found, trace())
        self.stats.seen[invariant] += 1

    def _trace(self, state: State) -> list[str]:
        steps = []
        while (came := self._came_from[state]) is not None:
            state, step = came
            steps.append(str(step))
        return steps[::-1]


def explore(protocol: Protocol, bounds: Bounds, promises: frozenset[str], rules: Rules | None = None) -> Stats:
    """Visit every reachable state. Raises `ViolationError` at the first broken promise."""
    gc.disable()  # hundreds of thousands of states stay alive: looking for cycles among them again and again is slow
    try:
        return Explorer(protocol, rules or Rules(), bounds, promises).run()
    finally:
        gc.enable()
