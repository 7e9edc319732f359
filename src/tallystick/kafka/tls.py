"""Whom the client trusts and which certificate it shows: Kafka's ``ssl.*`` for librdkafka and for kafka-python.

Java reads key stores of its own making (JKS, PKCS12) or PEM; OpenSSL, which the other two use, reads PEM. So PEM is the
one form that serves all three; for the others the error holds the command that makes a PEM of them.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError

_JAVA_ONLY = ("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.protocol")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def check(options: Mapping[str, str]) -> None:
    """The rules of Java's clients about PEM, which they tell only when they connect."""
    inline = {"truststore": ("certificates",), "keystore": ("key", "certificate.chain")}
    for store, parts in inline.items():
        kind = options.get(f"ssl.{store}.type", "JKS")
        given = [f"ssl.{store}.{part}" for part in parts if f"ssl.{store}.{part}" in options]
        if given and kind != "PEM":
            raise ConfigError(f"kafka: {given[0]} holds PEM text: set ssl.{store}.type to PEM (it is {kind})")
        if given and f"ssl.{store}.location" in options:
            raise ConfigError(f"kafka: {given[0]} and ssl.{store}.location are both set: leave one of them out")
        if given and len(given) < len(parts):
            missing = next(f"ssl.{store}.{part}" for part in parts if f"ssl.{store}.{part}" not in options)
            raise ConfigError(f"kafka: {given[0]} is set without {missing}: a client needs its key and its certificate")
        for name in given:
            _blocks(name, options[name])
        if kind == "PEM" and f"ssl.{store}.password" in options:
            raise ConfigError(
                f"kafka: ssl.{store}.password is set, but PEM has none; the password of a key is ssl.key.password"
            )


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    _no_java_only(options, "librdkafka")
    made: dict[str, str] = {}
    if "ssl.endpoint.identification.algorithm" in options:
        made["ssl.endpoint.identification.algorithm"] = options["ssl.endpoint.identification.algorithm"] or "none"
    if "ssl.truststore.location" in options:
        made["ssl.ca.location"] = _pem_file(options, "truststore", "librdkafka")
    if "ssl.truststore.certificates" in options:
        made["ssl.ca.pem"] = _pem(options, "ssl.truststore.certificates")
    if "ssl.keystore.key" in options:
        made["ssl.key.pem"] = _pem(options, "ssl.keystore.key")
        made["ssl.certificate.pem"] = _pem(options, "ssl.keystore.certificate.chain")
    elif options.get("ssl.keystore.type") == "PKCS12" and "ssl.keystore.location" in options:
        made["ssl.keystore.location"] = options["ssl.keystore.location"]
        made["ssl.keystore.password"] = options.get("ssl.keystore.password", "")
        return made
    elif "ssl.keystore.location" in options:
        # Java keeps the key and its certificates in one file, and OpenSSL looks for each of them in the whole of it.
        made["ssl.key.location"] = made["ssl.certificate.location"] = _pem_file(options, "keystore", "librdkafka")
    if "ssl.key.password" in options:
        made["ssl.key.password"] = options["ssl.key.password"]
    return made


def context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Made here and not by kafka-python, which cannot take PEM text and would find a wrong file while it connects."""
    _no_java_only(options, "kafka-python")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") != ""
    if "ssl.truststore.certificates" in options:
        _loaded(
            "ssl.truststore.certificates",
            made.load_verify_locations,
            cadata=_pem(options, "ssl.truststore.certificates"),
        )
    elif "ssl.truststore.location" in options:
        _loaded("ssl.truststore.location", made.load_verify_locations, _pem_file(options, "truststore", "kafka-python"))
    else:
        made.load_default_certs()
    password = options.get("ssl.key.password", "")
    if "ssl.keystore.location" in options:
        path = _pem_file(options, "keystore", "kafka-python")
        _loaded("ssl.keystore.location", made.load_cert_chain, path, password=password)
    elif "ssl.keystore.key" in options:
        both = _pem(options, "ssl.keystore.key") + _pem(options, "ssl.keystore.certificate.chain")
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL takes a key only from a file; only we can read this one
            path = os.fspath(Path(folder, "key.pem"))
            Path(path).write_text(both)
            _loaded("ssl.keystore.key", made.load_cert_chain, path, password=password)
    return made


def _loaded(name: str, load: Any, *arguments: Any, **named: Any) -> None:
    try:
        load(*arguments, **named)
    except (OSError, ValueError) as cause:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"kafka: {name} cannot be used ({cause}): needed readable PEM, and ssl.key.password if the key is encrypted"
        ) from cause


def _no_java_only(options: Mapping[str, str], client: str) -> None:
    given = next((name for name in _JAVA_ONLY if name in options), None)
    if given is not None:
        raise ConfigError(
            f"kafka: {given} is in Java's words, and {client} has others, so that not all clients of the job would "
            "keep to it: leave it out and set it on the broker"
        )


def _pem_file(options: Mapping[str, str], store: str, client: str) -> str:
    kind, path = options.get(f"ssl.{store}.type", "JKS"), options[f"ssl.{store}.location"]
    if kind == "PEM":
        return path
    raise ConfigError(
        f"kafka: {path} is a {store} of type {kind}, which {client} cannot read. make a PEM of it with "
        f"'{_conversion(kind, store, path)}', then set ssl.{store}.type to PEM and ssl.{store}.location to the new "
        f"file, without ssl.{store}.password"
    )


def _conversion(kind: str, store: str, path: str) -> str:
    base = re.sub(r"\.(jks|p12|pfx|pkcs12|keystore|truststore)$", "", path)
    if store == "truststore":
        return f"keytool -list -rfc -keystore {path} > {base}.pem"
    if kind == "PKCS12":
        return f"openssl pkcs12 -in {path} -nodes -out {base}.pem"
    return (
        f"keytool -importkeystore -srckeystore {path} -destkeystore {base}.p12 -deststoretype PKCS12 && "
        f"openssl pkcs12 -in {base}.p12 -nodes -out {base}.pem"
    )


def _pem(options: Mapping[str, str], name: str) -> str:
    """PEM as OpenSSL wants it, in lines of 64; Java also takes it on one line, as it stands in a properties file."""
    return "".join(
        f"-----BEGIN {label}-----\n{_lines(body)}-----END {label}-----\n"
        for label, body in _blocks(name, options[name])
    )


def _lines(body: str) -> str:
    bare = "".join(body.split())
    return "".join(f"{bare[start : start + 64]}\n" for start in range(0, len(bare), 64))


def _blocks(name: str, text: str) -> list[tuple[str, str]]:
    found = _PEM.findall(text)
    if not found:
        raise ConfigError(
            f"kafka: {name} holds no PEM: needed the text itself, from '-----BEGIN' to 'END …-----'; for a file use "
            f"ssl.{name.split('.')[1]}.location"
        )
    return found
