"""What a secured broker is told: passwords, rights and TLS.

Passwords are for SCRAM-SHA-256 and for PLAIN. `ADMIN` may do everything; the others may do what ACLs allow, and there
are none at first. Who comes by a listener without passwords is User:ANONYMOUS, who may do everything too: tests
administer the broker by its plain listener.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.servers.certificates import Certificates

ADMIN = "admin"
USERS = {ADMIN: "admin-secret", "writer": "writer-secret", "reader": "reader-secret", "nobody": "nobody-secret"}
"""User names and their passwords."""

SECURED = {"SASL": "SASL_PLAINTEXT", "SSL": "SSL", "SASL_SSL": "SASL_SSL"}
"""The listeners of a secured broker, and their protocols."""

_LOGIN = "org.apache.kafka.common.security"


def security_settings(certificates: Certificates, users: Mapping[str, str] = USERS) -> dict[str, str]:
    passwords = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    logins = {
        "scram-sha-256": f"{_LOGIN}.scram.ScramLoginModule required;",
        "plain": f"{_LOGIN}.plain.PlainLoginModule required {passwords};",
    }
    made = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "allow.everyone.if.no.acl.found": "false",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server_file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca_file),
    }
    for listener, protocol in SECURED.items():
        if protocol.startswith("SASL"):
            for mechanism, login in logins.items():
                made[f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config"] = login
    return made


def scram_arguments(users: Mapping[str, str] = USERS) -> list[str]:
    """For StorageTool: SCRAM passwords are part of the cluster's metadata, and so of the format."""
    return [
        word
        for name, password in users.items()
        for word in ("--add-scram", f"SCRAM-SHA-256=[name={name},password={password},iterations=4096]")
    ]
