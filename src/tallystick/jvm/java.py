"""Which ``java`` to run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tallystick.errors import SetupError


def find_java() -> Path:
    """The ``java`` of JAVA_HOME, else the one on PATH: the same order as Spark's own launcher."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
        raise SetupError(f"JAVA_HOME is {home}, but {java} cannot be run: set it to a Java 17 or 21, or unset it")
    found = shutil.which("java")
    if found is None:
        raise SetupError(
            "no java found: JAVA_HOME is not set and there is none on PATH. Spark needs Java 17 or 21: "
            "'apt install openjdk-17-jre-headless' or 'brew install openjdk@17'"
        )
    return Path(found)
