"""A certificate authority of our own, and a server certificate from it for 127.0.0.1, as PEM files.

Made with the ``openssl`` command, which also says what went wrong. For tests: the keys are not protected.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.servers.ports import LOOPBACK

_DAYS = "3650"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Certificates:
    """``ca_file`` is for clients; ``server_file`` holds the server's key and its chain."""

    folder: Path

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def server_file(self) -> Path:
        return self.folder / "server.pem"

    def make(self) -> None:
        """Make them anew. `SetupError` without a usable ``openssl``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ca_key, key, request = (self.folder / name for name in ("ca.key", "server.key", "server.csr"))
        subject = ["-subj", "/CN=tallystick tests", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._openssl(["req", "-x509", *_KEY, "-keyout", ca_key, "-out", self.ca_file, "-days", _DAYS, *subject])
        self._openssl(["req", "-new", *_KEY, "-keyout", key, "-out", request, "-subj", "/CN=localhost"])
        names = self.folder / "names.cnf"
        names.write_text(f"subjectAltName=IP:{LOOPBACK},DNS:localhost\n")
        signed: list[str | Path] = [
            "-CA",
            self.ca_file,
            "-CAkey",
            ca_key,
            "-set_serial",
            "1",
            "-days",
            _DAYS,
            "-extfile",
            names,
        ]
        certificate = self._openssl(["x509", "-req", "-in", request, *signed])
        self.server_file.write_text(key.read_text() + certificate + self.ca_file.read_text())

    def _openssl(self, arguments: Sequence[str | Path]) -> str:
        try:
            done = subprocess.run(
                ["openssl", *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"openssl, which makes the certificates, cannot be run: {error}") from error
        if done.returncode != 0:
            raise SetupError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout
