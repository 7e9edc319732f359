"""S3: versitygw where it is found, which keeps objects as files; else moto, which keeps them in memory.

versitygw is a real S3 server on a POSIX folder: what it stored survives a kill. It is a Go program and not on PyPI:
``go install github.com/versity/versitygw/cmd/versitygw@latest``, or ``scripts/ensure-versitygw.sh``, which builds it
into the cache folder. moto imitates S3 in Python: a real process behind real HTTP, but whoever stops it loses its
buckets. Which one a folder has is chosen when it is first started.
"""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.jvm import cache_folder
from tallystick.servers.base import Server
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program

ACCESS_KEY = "tallystick"
SECRET_KEY = "for-tests-only"
REGION = "us-east-1"
VERSITYGW = "versitygw"
MOTO = "moto"


class S3Server(Server):
    """Ready when it answers HTTP. It has no buckets at first."""

    name = "s3"

    @property
    def product(self) -> str:
        """``versitygw`` or ``moto``."""
        noted = self.folder / "product"
        return noted.read_text() if noted.exists() else _found()

    @property
    def version(self) -> str:
        if self.product == MOTO:
            return version("moto")
        asked = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=False)
        words = [line.split() for line in asked.stdout.splitlines() if line.startswith("Version")]
        return words[0][-1].lstrip("v") if words else ""

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[0]}"

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }

    @property
    def keeps_data(self) -> bool:
        return self.product == VERSITYGW

    def prepare(self) -> None:
        (self.folder / "product").write_text(_found())
        for folder in ("buckets", "accounts"):
            (self.data / folder).mkdir(exist_ok=True)

    def programs(self) -> list[Program]:
        if self.product == MOTO:
            return [Program("moto", [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.ports[0])])]
        command = [_program(), "--port", f"{LOOPBACK}:{self.ports[0]}", "--region", REGION, "--quiet"]
        command += ["--iam-dir", str(self.data / "accounts"), "posix", str(self.data / "buckets")]
        return [Program("versitygw", command, {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY})]

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[0], timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):  # nobody listens yet
            return False
        finally:
            connection.close()


def versitygw() -> Path | None:
    """The program on the PATH, else the one that was built into the cache folder last; None if there is neither."""
    on_path = shutil.which(VERSITYGW)
    if on_path is not None:
        return Path(on_path)
    built = cache_folder().glob(f"go/{VERSITYGW}/*/{VERSITYGW}")
    return max(built, key=lambda program: program.stat().st_mtime, default=None)


def _program() -> str:
    return str(versitygw() or VERSITYGW)  # the name alone if it is gone: starting it says so


def _found() -> str:
    if versitygw() is not None:
        return VERSITYGW
    if importlib.util.find_spec("moto") is not None:
        return MOTO
    raise SetupError(
        "no S3 server is here: found neither versitygw, on the PATH or in the cache folder, nor the package moto. "
        "needed one: pip install 'moto[server]', or go install github.com/versity/versitygw/cmd/versitygw@latest"
    )
