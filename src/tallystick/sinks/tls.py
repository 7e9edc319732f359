"""Whom a client trusts, and which certificate it shows: the same few settings for every sink that has TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from tallystick.errors import ConfigError


@dataclass(frozen=True)
class Tls:
    """TLS for the connections of a sink. The files must be on the driver and on every executor.

    ca_file          whom to trust, as PEM. None: whom this machine trusts
    cert_file        the certificate that the client shows, as PEM, if the server asks for one
    key_file         its key, if that is in another file
    key_password     of an encrypted key. Never shown
    check_hostname   whether the server's certificate must be for the name that was connected to
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("tls: key_file is set without cert_file: a key is of no use without its certificate")

    def context(self) -> ssl.SSLContext:
        """Reads the files. `ConfigError` with the file if one cannot be used."""
        made = ssl.create_default_context()
        made.check_hostname = self.check_hostname
        try:
            if self.ca_file is not None:
                made.load_verify_locations(self.ca_file)
            if self.cert_file is not None:
                made.load_cert_chain(self.cert_file, self.key_file, self.key_password or "")
        except (OSError, ValueError) as cause:  # ssl.SSLError is an OSError
            files = ", ".join(name for name in (self.ca_file, self.cert_file, self.key_file) if name)
            raise ConfigError(
                f"tls: {files} cannot be used ({cause}): needed readable PEM, and key_password if the key is encrypted"
            ) from cause
        return made


def tls_of(given: Tls | bool | None) -> Tls | None:
    """What the setting ``tls`` says: True is TLS with whom this machine trusts."""
    if given is True:
        return Tls()
    if given in (None, False):
        return None
    if isinstance(given, Tls):
        return given
    raise ConfigError(f"tls needs ts.sinks.Tls(ca_file=…), or True, found {type(given).__name__}")
