"""A small file system of its own, in memory, that can be filled, emptied and made read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """Mounted at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, "-t", "tmpfs", "tmpfs", str(self.path)], check=True, timeout=30)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True, timeout=30)

    def fill(self) -> Path:
        """Every byte of it; gives the file that has them."""
        ballast = self.path / ".ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                return ballast
        raise AssertionError("the disk did not fill up")


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Disk]:
    """Mounted for a while; skips where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = Disk(path)
    path.mkdir(parents=True)
    try:
        disk.mount(options)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small file system here: {error}")
    try:
        yield disk
    finally:
        # Lazily, because a process that is being started elsewhere may share our open files for a moment.
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=30)
