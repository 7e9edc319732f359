"""What a figure was measured on: versions, cores, load. Printed with every result."""

import os
import platform
import subprocess
from statistics import median
from typing import Any

import pyarrow
import pyspark


def machine() -> dict[str, Any]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return {
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "java": java,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, and the quarter points as the spread."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return {"median": median(ordered), "low": ordered[quarter], "high": ordered[-1 - quarter], "runs": len(ordered)}
