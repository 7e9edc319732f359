"""Whose processor time an epoch costs: read off the clocks that the kernel keeps for every thread.

A profiler inside the JVM makes epochs of some ten milliseconds twice as long; these clocks cost nothing.
"""

import os
from collections.abc import Iterable
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """All processes below this one, whatever their depth."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended meanwhile
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        waiting = [child for one in waiting for child in below.get(one, [])]
        found += waiting
    return found


def spent(pids: Iterable[int]) -> dict[str, float]:
    """Seconds by thread name, numbers in it left out.

    What threads spent that have ended is not in it.
    """
    seconds: dict[str, float] = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                text = task.read_text()
            except OSError:
                continue
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
            group = _group(name)
            seconds[group] = seconds.get(group, 0.0) + (int(fields[11]) + int(fields[12])) * TICK_S
    return seconds


def _group(name: str) -> str:
    """Spark renames its executor's threads with every task that they run."""
    return "Executor task" if name.startswith("Executor task") else name.rstrip("0123456789-#. ")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
