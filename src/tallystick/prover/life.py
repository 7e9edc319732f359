"""One life of the job under proof: a process that runs it until it is killed or its input is used up.

Run as ``python -m tallystick.prover.life PLAN``, with the plan as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick import killpoints
from tallystick.prover.hooks import Hooks
from tallystick.prover.place import Place
from tallystick.prover.redirect import Subject
from tallystick.prover.workload import Workload
from tallystick.records import Json
from tallystick.spark import faststart
from tallystick.spark.jobfile import job_of, load_file, parse
from tallystick.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,8]"
"""Two tasks at once, and a task that loses its worker is tried again."""

CLUSTER: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.task.maxFailures": "8",
    # a lost executor is gone at once, and nobody waits for its shuffle files
    "spark.standalone.executorRemoveDelayOnDisconnection": "200ms",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
}


@dataclass(frozen=True)
class LifePlan:
    """What a life is told: which job (``FILE[:NAME]``), the workload, and where it takes place."""

    spec: str
    workload: Workload
    place: Place
    master: str = MASTER
    pace_s: float | None = None
    """From the start of one epoch to that of the next, for a workload at a rate; None: one after the other."""

    def to_json(self) -> str:
        whole = {"spec": self.spec, "workload": self.workload.to_json(), "place": self.place.to_json()}
        return json.dumps({**whole, "master": self.master, "pace_s": self.pace_s})

    @classmethod
    def from_json(cls, text: str) -> LifePlan:
        value: Json = json.loads(text)
        return cls(
            value["spec"],
            Workload.from_json(value["workload"]),
            Place.from_json(value["place"]),
            value["master"],
            value["pace_s"],
        )


def subject_of(spec: str) -> Subject:
    """Load the job file. No Spark is started."""
    path, _ = parse(spec)
    module = load_file(path)
    return Subject(job_of(module, spec), Hooks.of(module))


def session_for(subject: Subject, master: str) -> SparkSession:
    """As the job declares it, but for the master."""
    conf = {**faststart.SHORT_JOB, **(_on_cluster() if master.startswith("spark:") else {}), **subject.job.spark_conf}
    conf.pop("spark.master", None)
    return session(subject.job.name, master, conf, fast_start=True, jvm_parts=subject.job.jvm_parts)


def _on_cluster() -> dict[str, str]:
    """Executors do not inherit the driver's environment: what they need of it goes through Spark's settings."""
    named = ("PYTHONPATH", killpoints.ENVIRONMENT, killpoints.ONCE)
    handed_on = {f"spark.executorEnv.{name}": os.environ[name] for name in named if name in os.environ}
    return {**CLUSTER, **handed_on, "spark.executor.extraJavaOptions": faststart.jvm_options()}


def live(plan: LifePlan) -> None:
    subject = subject_of(plan.spec)
    spark = session_for(subject, plan.master)
    job = subject.redirected(plan.workload, plan.place, plan.pace_s)
    if plan.pace_s is not None:
        threading.Thread(target=_stop_at_the_end, args=(plan, spark), daemon=True).start()
    job.run(spark, available_now=plan.pace_s is None)


def _stop_at_the_end(plan: LifePlan, spark: SparkSession) -> None:
    """A job that runs at a pace waits for more when all is done: it is stopped when Spark has noted the last epoch."""
    last = plan.place.checkpoint / "commits" / str(plan.workload.epochs - 1)
    while not last.exists():
        time.sleep(0.2)
    for query in spark.streams.active:
        query.stop()


def log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)


if __name__ == "__main__":
    log_to_stderr()
    live(LifePlan.from_json(sys.argv[1]))
