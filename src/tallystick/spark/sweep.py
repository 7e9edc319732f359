"""Roll back what settled epochs left open, also where no later epoch comes by to do it.

A task that ran twice leaves a second transaction behind, and the next epoch ends it (essay 9 of `protocol/epoch.py`).
After a job's last epoch there is no next one: its garbage would keep readers of Kafka waiting until it times out. So a
query sweeps once more when it has ended well; and, for the one that did not, when the next one starts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tallystick.errors import SinkError
from tallystick.spark.offsets import newest_epoch

if TYPE_CHECKING:
    from tallystick.journal.store import Store
    from tallystick.spark.coordinator import Plan

log = logging.getLogger("tallystick")


def sweep(plan: Plan, logs: Store) -> None:
    """Driver, while no epoch runs. ``logs`` is the checkpoint itself: what is in Spark's commit log is over for good.

    Only what is open is ended. What a sink remembers of committed transactions stays until a later epoch is settled: a
    machine that loses power may lose the last entry of Spark's log, and then that epoch is recovered once more. A
    server that does not answer is no reason to stop: what is left open there is found again.
    """
    settled = newest_epoch(logs, "commits")
    if settled < 0:
        return
    for name, sink in plan.sinks.items():
        try:
            for found in list(sink.open_transactions(plan.job_id)):
                if found.attempt.epoch <= settled:
                    sink.abort(found.committable)
        except SinkError as failure:
            log.warning("what settled epochs left open in %s could not be rolled back now: %s", name, failure)
