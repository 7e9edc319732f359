"""What ``tallystick doctor`` looks at: one function per thing, each answers with a `Check` and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.jvm.java import find_java

JAVA_MIN = 17
PYSPARK = "4.2."
PYARROW_MIN = 18
PYTHON_MIN = (3, 10)
MEMORY_NEEDED_BYTES = 2 << 30
DISK_LOW_BYTES = 1 << 30
DISK_FULL_BYTES = 100 << 20
CLOCK_SKEW_S = 5.0
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Check:
    """``status`` is ok, warn or fail; ``advice`` is what to do, empty if all is well."""

    name: str
    status: str
    found: str
    advice: str = ""


def examine(environment: Mapping[str, str] = os.environ) -> list[Check]:
    """Everything, in the order in which a job would stumble over it."""
    from tallystick.jvm import cache_folder

    checks = [java(), python(), package("pyspark", PYSPARK), pyarrow(), package("tallystick", "")]
    checks += [worker_python(environment), spark_environment(environment), memory()]
    checks += [
        folder("cache folder", cache_folder(), "set TALLYSTICK_CACHE to a folder that can be written"),
        folder("temporary folder", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written"),
        folder("this folder", Path.cwd(), "go to a folder that can be written, and run jobs there"),
    ]
    return [*checks, loopback(), hostname(), clock(), fast_start()]


def java() -> Check:
    try:
        path = find_java()
        told = subprocess.run([str(path), "-version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except SetupError as error:
        return Check("java", "fail", str(error), _java_advice())
    except (OSError, subprocess.SubprocessError) as error:
        return Check("java", "fail", f"java -version failed: {error}", _java_advice())
    text = told.stderr + told.stdout
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', text)
    if match is None:
        return Check("java", "warn", f"{path} tells no version: {text.splitlines()[:1]}", _java_advice())
    found = f"{match[0].removeprefix('version ')} at {path}".replace('"', "")
    return Check("java", "ok", found) if int(match[1]) >= JAVA_MIN else Check("java", "fail", found, _java_advice())


def _java_advice() -> str:
    return f"Spark needs Java {JAVA_MIN} or newer: apt install openjdk-17-jre-headless, or set JAVA_HOME"


def python() -> Check:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] >= PYTHON_MIN:
        return Check("python", "ok", found)
    return Check("python", "fail", found, f"needed Python {'.'.join(map(str, PYTHON_MIN))} or newer")


def package(name: str, wanted: str) -> Check:
    """An installed package whose version begins with ``wanted``."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, "fail", "not installed", f"pip install {_requirement(name, wanted)}")
    if found.startswith(wanted):
        return Check(name, "ok", found)
    return Check(name, "fail", found, f"needed {wanted}x: pip install {_requirement(name, wanted)}")


def _requirement(name: str, wanted: str) -> str:
    return f"'{name}=={wanted}*'" if wanted else name


def pyarrow() -> Check:
    check = package("pyarrow", "")
    if check.status == "ok" and int(check.found.split(".")[0]) < PYARROW_MIN:
        return Check("pyarrow", "fail", check.found, f"pip install 'pyarrow>={PYARROW_MIN}'")
    return check


def worker_python(environment: Mapping[str, str]) -> Check:
    """Workers run PYSPARK_PYTHON; it must have what tasks import."""
    name, chosen = "PYSPARK_PYTHON", environment.get("PYSPARK_PYTHON")
    if not chosen:
        return Check(name, "ok", "not set: workers run this Python")
    path = shutil.which(chosen)
    if path is None:
        return Check(name, "fail", f"{chosen} cannot be run", f"unset it, or: export {name}={sys.executable}")
    if Path(path).parent.samefile(Path(sys.executable).parent):
        return Check(name, "ok", chosen)
    script = "import sys, pyarrow, tallystick; print('%d.%d' % sys.version_info[:2])"
    try:
        told = subprocess.run([path, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, "fail", f"{chosen}: {error}", f"unset it, or: export {name}={sys.executable}")
    if told.returncode != 0:
        why = (told.stderr.strip().splitlines() or ["failed"])[-1]
        return Check(name, "fail", f"{chosen}: {why}", f"pip install tallystick there, or unset {name}")
    if told.stdout.strip() != "{}.{}".format(*sys.version_info[:2]):
        return Check(name, "fail", f"{chosen} is Python {told.stdout.strip()}", "needed the driver's version: unset it")
    return Check(name, "warn", f"{chosen} is another environment", "keep both at the same versions")


def spark_environment(environment: Mapping[str, str]) -> Check:
    """Two variables that silently put another Spark in place of the one that is installed here."""
    if environment.get("SPARK_REMOTE"):
        return Check(
            "Spark settings", "fail", f"SPARK_REMOTE={environment['SPARK_REMOTE']}", "Spark Connect: unset SPARK_REMOTE"
        )
    home = environment.get("SPARK_HOME")
    if not home:
        return Check("Spark settings", "ok", "neither SPARK_HOME nor SPARK_REMOTE is set")
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        return Check("Spark settings", "fail", f"SPARK_HOME={home} is no Spark", "unset SPARK_HOME")
    if f"-{PYSPARK}" not in jars[0].name:
        return Check("Spark settings", "fail", f"SPARK_HOME has {jars[0].name}", f"needed {PYSPARK}x: unset SPARK_HOME")
    return Check("Spark settings", "ok", f"SPARK_HOME={home}")


def memory() -> Check:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    total_bytes = os.sysconf("SC_PHYS_PAGES") * page_bytes
    free_bytes = _available_bytes() or total_bytes
    found = f"{free_bytes / (1 << 30):.1f} of {total_bytes / (1 << 30):.1f} GB free"
    if free_bytes >= MEMORY_NEEDED_BYTES:
        return Check("memory", "ok", found)
    return Check("memory", "warn", found, "Spark takes 1 to 2 GB: end other programs, or set spark.driver.memory")


def _available_bytes() -> int | None:
    """What can be had without swapping, as Linux estimates it; None elsewhere."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(match[1]) << 10 if match else None


def folder(name: str, path: Path, advice: str) -> Check:
    """Can a file be made here, or in the nearest folder above that exists, and is there space?"""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return Check(name, "fail", f"{path} cannot be written: {error.strerror}", advice)
    found = f"{path}, {free_bytes / (1 << 30):.1f} GB free"
    if free_bytes < DISK_FULL_BYTES:
        return Check(name, "fail", found, "the disk is full: free some space")
    return Check(name, "ok" if free_bytes >= DISK_LOW_BYTES else "warn", found, _low(free_bytes))


def _low(free_bytes: int) -> str:
    return "" if free_bytes >= DISK_LOW_BYTES else "little space is left: free some"


def loopback() -> Check:
    """Spark's driver, workers and Python talk to each other over loopback."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            port = server.getsockname()[1]
    except OSError as error:
        return Check("loopback ports", "fail", f"127.0.0.1: {error}", "allow connections on the loopback interface")
    return Check("loopback ports", "ok", f"port {port} could be bound and reached")


def hostname() -> Check:
    """Spark's driver announces itself by this name unless told otherwise; local runs are told otherwise."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        advice = f"local runs do without; for others: echo '127.0.0.1 {name}' >> /etc/hosts, or set SPARK_LOCAL_IP"
        return Check("host name", "warn", f"{name} does not resolve: {error}", advice)
    return Check("host name", "ok", f"{name} is {address}")


def clock() -> Check:
    """Ages and rolling go by the clock; a clock behind the installed files was set back."""
    now_s = time.time()
    with tempfile.NamedTemporaryFile() as file:
        skew_s = abs(Path(file.name).stat().st_mtime - now_s)
    behind_s = Path(__file__).stat().st_mtime - now_s
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if skew_s > CLOCK_SKEW_S:
        return Check(
            "clock", "warn", f"{found}, but new files are {skew_s:.0f} s off", "set the clock of both machines"
        )
    if behind_s > CLOCK_SKEW_S:
        return Check("clock", "warn", f"{found} is before this package was installed", "set the clock")
    return Check("clock", "ok", found)


def fast_start() -> Check:
    """Without the archive everything works, and starts slower."""
    from tallystick.spark.faststart import archive_path

    advice = "short runs start faster with it: python -m tallystick.spark.faststart"
    try:
        archive = archive_path()
    except (OSError, ImportError) as error:
        return Check("fast start", "warn", f"cannot tell: {error}", advice)
    if archive is None:
        return Check("fast start", "warn", "no archive for this Java and Spark", advice)
    return Check("fast start", "ok", f"{archive}, {archive.stat().st_size >> 20} MB")
