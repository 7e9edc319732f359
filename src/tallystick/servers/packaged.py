"""Servers that come from the system's packages: where their programs are, or what to type to have them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tallystick.errors import SetupError


def program(name: str, package: str, folders: str = "") -> Path:
    """The newest program of this name in ``folders`` (a pattern below ``/``), or on the path. `SetupError` if none."""
    found = sorted(Path("/").glob(f"{folders}/{name}"), key=_numbers) if folders else []
    if found:
        return found[-1]
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    raise SetupError(
        f"{name} is not on this machine. install it, for instance: sudo apt-get install {package}; where root is "
        "available, make setup does"
    )


def version_of(path: Path) -> str:
    """What ``PROGRAM --version`` says: the first number with a dot in it."""
    said = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    number = re.search(r"\d+(?:\.\d+)+", said)
    return number[0] if number else ""


def _numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", str(path))]
