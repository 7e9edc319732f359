"""Which files of a folder no epoch has read yet, found as Spark's file source finds them.

A file that is written in place can be read too early: Spark takes it as it is then, and never again. If that cut a line
the epoch fails; if not, only the time of its last change tells.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tallystick.errors import SourceError
from tallystick.sources.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Found:
    name: str
    size: int
    changed_ms: int


def unread(folder: str, chosen: str | None, known: Mapping[str, int], spark: SparkSession | None) -> Lag:
    """``chosen`` is a pattern of names, None for all; ``known`` are the files that were read, as Spark logs them, with
    the time of their last change."""
    scheme = urlsplit(folder).scheme
    if scheme in ("", "file"):
        local = folder if not scheme else unquote(urlsplit(folder).path)
        files, read = _local(str(Path(local).absolute())), {unquote(urlsplit(name).path): known[name] for name in known}
    elif spark is not None:
        files, read = _through_hadoop(folder, spark), {unquote(name): known[name] for name in known}
    else:
        raise SourceError(f"files: {folder} is no local folder, and there is no Spark session to list it with")
    fits = _globbed(chosen or "*")
    listed = [file for file in files if fits.fullmatch(file.name.rpartition("/")[2])]
    waiting = [file.size for file in listed if file.name not in read]
    changed = [file.name for file in listed if file.name in read and _is_later(file.changed_ms, read[file.name])]
    return Lag(files=len(waiting), bytes=sum(waiting), notice=_notice(changed))


def _notice(changed: Sequence[str]) -> str | None:
    if not changed:
        return None
    others = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
    return (
        f"{changed[0]}{others} changed after being read: what was added since is not read, and never will be. write "
        "files elsewhere and rename them in; put the missing rows into a new file"
    )


def _is_later(changed_ms: int, logged_ms: int) -> bool:
    """Some file systems know whole seconds only, and then so does the log."""
    return changed_ms > logged_ms and changed_ms // 1000 * 1000 != logged_ms


def _local(folder: str) -> Iterator[Found]:
    for entry in os.scandir(folder):
        if _is_hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _local(entry.path)
            continue
        with contextlib.suppress(FileNotFoundError):  # what goes while it is counted does not wait any more
            facts = entry.stat()
            yield Found(entry.path, facts.st_size, facts.st_mtime_ns // 1_000_000)


def _through_hadoop(folder: str, spark: SparkSession) -> Iterator[Found]:
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).listFiles(path, True)
    while files.hasNext():
        file = files.next()
        name = str(file.getPath().toString())
        if not any(_is_hidden(part) for part in name.removeprefix(folder).split("/") if part):
            yield Found(name, int(file.getLen()), int(file.getModificationTime()))


def _is_hidden(name: str) -> bool:
    """As Spark has it: what starts with a dot or an underscore, unless it is a folder of a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _globbed(pattern: str) -> re.Pattern[str]:
    """Hadoop's patterns are those of shells, with ``{a,b}``."""
    head, brace, rest = pattern.partition("{")
    choices, closing, tail = rest.partition("}")
    if not brace or not closing:
        return re.compile(translate(pattern))
    return re.compile("|".join(_globbed(f"{head}{choice}{tail}").pattern for choice in choices.split(",")))
