"""Build the jar of our classes in Spark's JVM from the sources beside it: ``python scripts/build_jar.py``

Needs a ``javac``; who only runs jobs does not, because the jar is part of the package. The same sources and compiler
give the same bytes: no times are kept. The manifest names the hash of the sources and the compiler's version.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyspark

from tallystick.jvm.classes import JAR, SOURCES

RELEASE = "17"
LONG_AGO = (1980, 1, 1, 0, 0, 0)
MANIFEST = "META-INF/MANIFEST.MF"


def build(jar: Path, sources: Sequence[Path] = SOURCES) -> None:
    """Compile for Java 17, against the jars of Spark, and pack."""
    with tempfile.TemporaryDirectory() as folder:
        jars = Path(pyspark.__file__).parent / "jars"
        command = ["javac", "--release", RELEASE, "-Xlint:all,-path,-classfile,-processing", "-Werror"]
        command += ["-g:source,lines", "-cp", f"{jars}/*", "-d", folder, *map(str, sources)]
        subprocess.run(command, check=True)
        classes = sorted(path for path in Path(folder).rglob("*.class"))
        with zipfile.ZipFile(jar, "w") as packed:
            _add(packed, MANIFEST, manifest(sources, compiler()).encode())
            for path in classes:
                _add(packed, path.relative_to(folder).as_posix(), path.read_bytes())


def manifest(sources: Sequence[Path], javac: str | None) -> str:
    # a line of a manifest has at most 72 bytes, so the hash is cut
    return f"Manifest-Version: 1.0\nSource-SHA-256: {digest(sources)}\nBuild-Javac: {javac}\n\n"


def digest(sources: Sequence[Path]) -> str:
    """Over the names and the hashes of all sources."""
    each = [f"{source.name} {hashlib.sha256(source.read_bytes()).hexdigest()}\n" for source in sources]
    return hashlib.sha256("".join(each).encode()).hexdigest()[:40]


def compiler() -> str | None:
    """The version of the ``javac`` on the PATH, such as ``17.0.15``; None if there is none."""
    if shutil.which("javac") is None:
        return None
    asked = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return (asked.stdout + asked.stderr).split()[-1]


def said(jar: Path) -> dict[str, str]:
    """What a jar's manifest says of it."""
    with zipfile.ZipFile(jar) as packed:
        lines = packed.read(MANIFEST).decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def _add(packed: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, LONG_AGO)
    entry.external_attr = 0o644 << 16
    packed.writestr(entry, data)


if __name__ == "__main__":
    if compiler() is None:
        sys.exit("no javac found on the PATH: needed a JDK, such as 'apt install openjdk-17-jdk-headless'")
    build(JAR)
    print(f"{JAR}: {JAR.stat().st_size} bytes, javac {compiler()}")
