"""End-to-end exactly-once for PySpark.

::

    import tallystick as ts

    query = ts.write_stream(df, ts.sinks.Files("out"), checkpoint="checkpoints/out").start()

What this package exports is `__all__`; everything else may change. Names are loaded on first use: a worker that
writes a slice imports this package too, and should not pay for what only the driver needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick import sinks, sources
    from tallystick.checkpoint import Checkpoint
    from tallystick.errors import TallystickError
    from tallystick.records import Mode, Outcome
    from tallystick.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
    from tallystick.spark import states as state
    from tallystick.spark.job import Job
    from tallystick.spark.outputs import Output
    from tallystick.spark.parts import kafka_jars, s3_jars
    from tallystick.spark.session import session
    from tallystick.spark.stream import write_stream

__version__: str

_HOMES = {
    "Checkpoint": "tallystick.checkpoint",
    "ExponentialDelay": "tallystick.restart",
    "FailureRate": "tallystick.restart",
    "FixedDelay": "tallystick.restart",
    "Job": "tallystick.spark.job",
    "Mode": "tallystick.records",
    "NoRestart": "tallystick.restart",
    "Outcome": "tallystick.records",
    "Output": "tallystick.spark.outputs",
    "TallystickError": "tallystick.errors",
    "kafka_jars": "tallystick.spark.parts",
    "s3_jars": "tallystick.spark.parts",
    "session": "tallystick.spark.session",
    "sinks": "tallystick.sinks",
    "sources": "tallystick.sources",
    "state": "tallystick.spark.states",
    "write_stream": "tallystick.spark.stream",
}

__all__ = [
    "Checkpoint",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "Job",
    "Mode",
    "NoRestart",
    "Outcome",
    "Output",
    "TallystickError",
    "kafka_jars",
    "s3_jars",
    "session",
    "sinks",
    "sources",
    "state",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tallystick")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it exports {', '.join(__all__)}")
    home = import_module(_HOMES[name])
    value = home if name in ("sinks", "sources", "state") else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What a notebook completes: also the names that are not loaded yet."""
    return sorted({*globals(), *__all__, "__version__"})
