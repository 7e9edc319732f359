"""One job into PostgreSQL and Redis under faults: its runs, and what is in both of them at the end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import databases_pipeline
from databases_pipeline import Plan
from killed_job import KilledJob

from postgresql_tables import prepared, staged
from redis_keys import held, not_applied
from tallystick.prover import Tally, tally
from tallystick.sinks.postgresql.names import prefix_of

HERE = Path(__file__).parent
MODULES = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
"""Workers import what one pipeline has from another one."""


class Campaign(KilledJob):
    """``expected`` and ``delivered`` are those of the pipeline, ``tables`` those that it writes to."""

    pipeline = "databases_pipeline.py"
    tables: tuple[str, ...] = ("events", "latest")
    expected = staticmethod(databases_pipeline.expected)
    delivered = staticmethod(databases_pipeline.delivered)

    def __init__(self, postgresql: str, redis: str, folder: Path, epochs: int, **plan: object) -> None:
        super().__init__(folder)
        (folder / "marks").mkdir()
        name = f"t{uuid.uuid4().hex[:10]}"
        self.plan = replace(Plan(str(folder), postgresql, redis, name, epochs), **plan)  # type: ignore[arg-type]

    def arguments(self) -> list[str]:
        return [self.plan.to_json()]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": MODULES}

    def tally(self) -> Tally:
        return tally(self.expected(self.plan), self.delivered(self.plan))

    def tally_by_server(self) -> dict[str, Tally]:
        """The same, apart for tables and keys."""
        of = {"postgresql": ("events", "latest"), "redis": ("counts", "stream")}
        wanted, found = list(self.expected(self.plan)), list(self.delivered(self.plan))
        return {
            server: tally([row for row in wanted if row[0] in kinds], [row for row in found if row[0] in kinds])
            for server, kinds in of.items()
        }

    def left_open(self) -> list[str]:
        """What either server still holds of this job, except what Redis remembers of the last two epochs."""
        tables = [f"{self.plan.name}_{table}" for table in self.tables]
        prefixes = [prefix_of(self.job_id(), table) for table in tables]
        names = [name for prefix in prefixes for name in prepared(self.plan.postgresql, prefix)]
        names += [name for prefix in prefixes for name in staged(self.plan.postgresql, prefix)]
        ours = f"tallystick:{self.job_id()}"
        last = [f":{self.plan.epochs - before:012d}." for before in (1, 2)]
        names += [key for key in held(self.plan.redis, ours) if not any(epoch in key for epoch in last)]
        return names + not_applied(self.plan.redis, ours)


def row(fault: str, campaign: Campaign, kills: int, found: Tally) -> str:
    return (
        f"{fault:<50} runs {campaign.runs:>2}  kills {kills:>2}  expected {found.expected:>5}  lost {found.lost:>4}  "
        f"repeated {found.repeated:>4}  phantom {found.phantom:>2}"
    )
