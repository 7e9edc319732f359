"""Fetch the JVM parts that `ivy.xml` pins, once, into one cache folder.

::

    CACHE/jvm/lock              held while parts are being fetched
    CACHE/jvm/ivy/              Ivy's own cache of downloads
    CACHE/jvm/CONF/*.jar        the parts of one configuration
    CACHE/jvm/CONF/complete.json    written last: the hash of the Ivy file, and every jar with its size

A folder without a matching ``complete.json`` does not count, so that a killed download leaves nothing half done.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tallystick.errors import ConfigError, SetupError
from tallystick.jvm.java import find_java

IVY_FILE = Path(__file__).with_name("ivy.xml")
CACHE = "TALLYSTICK_CACHE"
TIMEOUT_S = 900.0
MARKER = "complete.json"


def cache_folder() -> Path:
    """Where downloads are kept: TALLYSTICK_CACHE, else ``tallystick`` in the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tallystick"


def resolve(conf: str, *, ivy_file: Path = IVY_FILE, cache: Path | None = None) -> list[Path]:
    """The jars of one configuration, sorted; fetched if they are not in the cache yet.

    When they are, no process is started and nothing is asked of the network. Several processes may call it at once:
    one fetches, the others wait for it. Raises `SetupError` without java or network.
    """
    folder = (cache or cache_folder()) / "jvm"
    digest = hashlib.sha256(ivy_file.read_bytes()).hexdigest()
    jars = _complete(folder / conf, digest)
    if jars is not None:
        return jars
    with _lock(folder):
        jars = _complete(folder / conf, digest)  # another process may have fetched them while this one waited
        return jars if jars is not None else _fetch(conf, ivy_file, folder, digest)


def version_of(conf: str, artifact: str) -> str:
    """Which version of an artifact a configuration holds; its jars are fetched if they are not there."""
    found = [jar.stem.removeprefix(f"{artifact}-") for jar in resolve(conf)]
    versions = [version for version in found if version[:1].isdigit()]
    if len(versions) != 1:
        raise ConfigError(f"{IVY_FILE} gives {len(versions)} jars of {artifact} for the configuration {conf!r}")
    return versions[0]


def _complete(parts: Path, digest: str) -> list[Path] | None:
    try:
        marker = json.loads((parts / MARKER).read_text())
    except (OSError, ValueError):  # never fetched, or cut off by a power failure
        return None
    if marker["ivy"] != digest:
        return None
    jars = {parts / name: size for name, size in marker["jars"].items()}
    whole = all(jar.is_file() and jar.stat().st_size == size for jar, size in jars.items())
    return sorted(jars) if whole else None


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "lock").open("w")
    except OSError as error:
        raise SetupError(
            f"the cache folder {folder} cannot be used: {error.strerror}. set {CACHE} to a folder that can be written"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(conf: str, ivy_file: Path, folder: Path, digest: str) -> list[Path]:
    """Called with the lock held. What is there is incomplete or pinned differently."""
    parts, fresh = folder / conf, folder / f"{conf}.fetching"
    for old in (fresh, parts):
        shutil.rmtree(old, ignore_errors=True)
    _run_ivy(conf, ivy_file, folder / "ivy", fresh)
    jars = {jar.name: jar.stat().st_size for jar in sorted(fresh.glob("*.jar"))}
    if not jars:
        raise ConfigError(f"{ivy_file} gives no jars for the configuration {conf!r}")
    (fresh / MARKER).write_text(json.dumps({"ivy": digest, "jars": jars}, indent=1))
    fresh.rename(parts)
    return [parts / name for name in jars]


def _run_ivy(conf: str, ivy_file: Path, downloads: Path, target: Path) -> None:
    pattern = f"{target}/[artifact]-[revision](-[classifier]).[ext]"
    # packaging "bundle" is a jar too (guava, snappy); Ivy leaves it out unless told
    command = [str(find_java()), "-jar", str(_ivy_jar()), "-ivy", str(ivy_file), "-cache", str(downloads)]
    command += ["-confs", conf, "-retrieve", pattern, "-types", "jar", "bundle"]
    advice = _advice(conf, target.parent)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"fetching the JVM parts {conf!r} took over {TIMEOUT_S:.0f} s. {advice}") from error
    if done.returncode != 0:
        raise SetupError(f"the JVM parts {conf!r} could not be fetched: {_reason(done)}. {advice}")


def _ivy_jar() -> Path:
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise SetupError(
            f"no ivy-*.jar in {Path(pyspark.__file__).parent / 'jars'}: this PySpark is not the one from PyPI. "
            "'pip install --force-reinstall pyspark' brings it"
        )
    return jars[-1]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The lines in which Ivy says what went wrong, among hundreds in which it counts its downloads."""
    telling = ("Exception", "not found", "ERROR", "unresolved", "FAILED", "can't", "required configuration")
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines()]
    found = list(dict.fromkeys(line for line in lines if any(word in line for word in telling)))
    return "; ".join(found[:4]) or f"ivy ended with status {done.returncode}"


def _advice(conf: str, folder: Path) -> str:
    return (
        "they come from https://repo1.maven.org: check that this machine reaches it (java takes its proxy from "
        "JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT), or copy the folder "
        f"jvm/{conf} of a machine that has it into {folder}"
    )
