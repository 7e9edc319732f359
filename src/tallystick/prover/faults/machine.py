"""The machine itself: a clock that is wrong, a disk that is full."""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.jvm import cache_folder
from tallystick.prover.faults.base import Fault, World

_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Clock(Fault):
    """This life's wall clock is off by ``offset_s``, for driver, JVM and workers, from the start of the process.

    A small library of ours (``clock.c``) is preloaded. The monotonic clock, timed waits and the times of files stay
    right, as on a machine whose clock was set wrong.
    """

    kind = "clock"

    offset_s: int

    def set_up(self, world: World) -> None:
        library = clock_library()
        if library is None:
            raise SetupError("a clock cannot be moved here: needed a C compiler, for instance: apt-get install gcc")
        world.environment |= {"LD_PRELOAD": str(library), "TALLYSTICK_CLOCK_S": str(self.offset_s)}

    def inject(self, world: World) -> None:
        """It holds from the start of the process."""


@lru_cache
def clock_library() -> Path | None:
    """Compiled once into the user's cache folder; None without a C compiler."""
    compiler, source = shutil.which("cc") or shutil.which("gcc"), Path(__file__).with_name("clock.c")
    if compiler is None:
        return None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library = cache_folder() / f"clock-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{uuid.uuid4().hex}")  # several threads may be at it, and processes
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(draft), str(source), "-ldl", "-lpthread"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise SetupError(f"{source.name} could not be compiled: {made.stderr.strip()[-500:]}")
        draft.rename(library)
    return library


@dataclass(frozen=True)
class DiskFull(Fault):
    """No byte is left on the disk of the outputs for a while. It is a small one of their own (tmpfs)."""

    kind = "disk-full"

    after_s: float
    lasts_s: float

    def inject(self, world: World) -> None:
        ballast = self._ballast(world)
        with ballast.open("wb", buffering=0) as heavy:
            try:
                while True:
                    heavy.write(b"\0" * _BLOCK_BYTES)
            except OSError as full:
                if full.errno != errno.ENOSPC:
                    raise
            try:
                while True:
                    heavy.write(b"\0")
            except OSError as full:
                if full.errno != errno.ENOSPC:
                    raise

    def heal(self, world: World) -> None:
        self._ballast(world).unlink(missing_ok=True)

    @staticmethod
    def _ballast(world: World) -> Path:
        return world.place.own / "output" / ".ballast"
