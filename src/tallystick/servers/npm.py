"""Fetch the servers that are npm packages, once, into the cache folder: ``make setup`` calls `main`.

Every package is pinned with its hash in ``kinesalite/package-lock.json``. A folder without its mark does not count, so
that a killed download leaves nothing half done.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.jvm import cache_folder

PINNED = Path(__file__).with_name("kinesalite")
TIMEOUT_S = 300.0


def find_node() -> Path:
    """The ``node`` on PATH."""
    found = shutil.which("node")
    if found is None:
        raise SetupError("no node found on PATH, which runs the Kinesis server: 'apt install nodejs npm' brings it")
    return Path(found)


def kinesalite() -> Path:
    """The folder of the package; fetched if it is not in the cache yet. `SetupError` without npm or network."""
    digest = hashlib.sha256((PINNED / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = cache_folder() / "npm" / f"kinesalite-{digest}"
    package = folder / "node_modules" / "kinesalite"
    if not (folder / "complete").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                _fetch(folder)
    return package


def _fetch(folder: Path) -> None:
    """Called with the lock held."""
    npm = shutil.which("npm")
    if npm is None:
        raise SetupError("no npm found on PATH, which fetches the Kinesis server: 'apt install npm' brings it")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PINNED, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"fetching the Kinesis server took over {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise SetupError(
            f"the Kinesis server could not be fetched: {'; '.join(lines[:3]) or done.stderr.strip()}. check that npm "
            f"reaches its registry, or copy {folder} from a machine that has it"
        )
    (folder / "complete").touch()


def main() -> int:
    """For ``make setup``: a machine without node does without this server, and is told so."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("kinesalite: left out, because there is no node and npm here: 'apt install nodejs npm' brings them")
        return 0
    try:
        print(f"kinesalite: in {kinesalite()}")
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
