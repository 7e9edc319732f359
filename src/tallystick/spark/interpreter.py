"""Which Python the processes run that Spark starts, and where they find PySpark.

Spark starts a Python process for every task slot, and five more for a source that is written in Python, one after the
other. Before everything else on their path it puts its own copy of PySpark, a zip of sources: each process compiles
what it imports, anew. Where PySpark was installed by pip, that copy and the installed package are the same, and the
package is compiled. So on one machine they run ``worker-python``, which lies beside this module: it takes the zip off
the path and runs the driver's own interpreter. A job with a Python source has its first epoch two to three seconds
sooner, of twelve (docs/decisions/0022-workers-import-compiled-pyspark.md).

Not on a cluster, where nobody knows what is installed on the other machines; not if Spark is another one than the
package that the driver imports; and not if somebody has chosen an interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAUNCHER = Path(__file__).with_name("worker-python")
RUNS = "TALLYSTICK_PYTHON"
"""What the launcher runs: told to the JVM, and by it to the processes that it starts."""
OF_TASKS, OF_DRIVER = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"


@contextmanager
def interpreter_chosen(master: str | None, chosen: str | None) -> Iterator[None]:
    """While a JVM and a session are made: what they find in the environment. ``chosen`` is by Spark's settings.

    The process that runs a Python source takes its interpreter from the environment that the JVM was started with, not
    from Spark's settings; a session takes the one of its tasks from the driver's environment.
    """
    ours = str(LAUNCHER) if launches_workers(master, chosen) else sys.executable
    wanted = {OF_TASKS: chosen or ours, OF_DRIVER: ours, RUNS: sys.executable}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def launches_workers(master: str | None, chosen: str | None) -> bool:
    """Whether Spark's Python processes are started by our launcher."""
    return chosen is None and os.environ.get(OF_TASKS, str(LAUNCHER)) == str(LAUNCHER) and launcher_fits(master)


def launcher_fits(master: str | None) -> bool:
    import pyspark

    here = master is not None and master.startswith("local") and not master.startswith("local-cluster")
    installed = Path(pyspark.__file__).parent
    same = "SPARK_HOME" not in os.environ or Path(os.environ["SPARK_HOME"]).resolve() == installed.resolve()
    compiled = any((installed / "__pycache__").glob("worker.*.pyc")) or os.access(installed, os.W_OK)
    return here and same and compiled and os.access(LAUNCHER, os.X_OK)
