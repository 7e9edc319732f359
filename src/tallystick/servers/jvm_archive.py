"""Start a JVM server sooner: map its classes from an archive (AppCDS) that a first, short run has left behind.

An archive fits one Java and one set of jars; their hash is in its name. So is its size, because a JVM dies that maps
a truncated one; an archive that the JVM does not accept for another reason is passed over without a word. Nothing
here ever keeps a server from starting: whatever goes wrong, it starts without an archive, only later.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.jvm import cache_folder, find_java

ARCHIVES_KEPT = 3
_log = logging.getLogger(__name__)


def archive_options(name: str, jars: Sequence[Path]) -> list[str]:
    """What to tell java; nothing if there is no archive. Reads file names only."""
    archive = find_archive(name, jars)
    if archive is None:
        return []
    return ["-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", f"-XX:SharedArchiveFile={archive}"]


def find_archive(name: str, jars: Sequence[Path]) -> Path | None:
    """The whole archive of this Java and these jars, which must be given in the order of the class path."""
    for path in cache_folder().glob(f"{name}-{_key(jars)}-*.jsa"):
        with suppress(FileNotFoundError):  # removed meanwhile, for newer ones
            if path.stem.endswith(f"-{path.stat().st_size}"):
                return path
    return None


def ensure_archive(name: str, jars: Sequence[Path], run_briefly: Callable[[Path, list[str]], None]) -> None:
    """Make the archive unless it is there, is being made by another process, or could not be made before.

    ``run_briefly`` gets a scratch folder and options for java; it starts the server there and stops it, which writes
    the archive.
    """
    if find_archive(name, jars) is not None:
        return
    refused = cache_folder() / f"{name}-{_key(jars)}.refused"
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with (cache_folder() / f"{name}.archive.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if find_archive(name, jars) is None and not refused.exists():
                _build(name, jars, run_briefly)
    except BlockingIOError:
        _log.info("another process is making the archive for %s: starting without", name)
    except (OSError, SetupError) as error:
        _log.warning("no archive for faster starts of %s was made: %s", name, error)
        _refuse(refused, str(error))


def _build(name: str, jars: Sequence[Path], run_briefly: Callable[[Path, list[str]], None]) -> None:
    """Called with the lock held. Others see no archive or a whole one."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache_folder()) as scratch:
        made = Path(scratch, "archive.jsa")
        run_briefly(Path(scratch), [f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"])
        if not made.exists():
            raise SetupError(f"{find_java()} left no archive of its classes")
        with made.open("rb") as whole:
            os.fsync(whole.fileno())
        made.replace(cache_folder() / f"{name}-{_key(jars)}-{made.stat().st_size}.jsa")
    archives = sorted(cache_folder().glob(f"{name}-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[ARCHIVES_KEPT:]:  # of another Java or of other jars
        old.unlink(missing_ok=True)


def _refuse(marker: Path, why: str) -> None:
    """So that not every start pays for a try that will fail again. Remove the file to have it tried again."""
    try:
        marker.write_text(why + "\n")
    except OSError as error:
        _log.info("%s could not be noted: %s", marker, error)


def _key(jars: Sequence[Path]) -> str:
    java = find_java().resolve()
    parts = [f"{java} {java.stat().st_mtime_ns}"]
    for jar in jars:
        facts = jar.stat()
        parts.append(f"{jar} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
