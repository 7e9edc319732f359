"""Who the client is: Kafka's ``security.protocol`` and ``sasl.*`` for the three clients; `tls` has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.errors import ConfigError
from tallystick.kafka import jaas, tls

PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def check(options: Mapping[str, str]) -> None:
    """Driver, when the settings are declared. Reads no file: executors may have others than this machine."""
    protocol = options.get("security.protocol", "PLAINTEXT")
    for family, wanted in (("sasl.", ("SASL_PLAINTEXT", "SASL_SSL")), ("ssl.", ("SSL", "SASL_SSL"))):
        given = next((name for name in options if name.startswith(family)), None)
        if given is not None and protocol not in wanted:
            raise ConfigError(
                f"kafka: {given} is set, but security.protocol is {protocol}, which does not use it: "
                f"set security.protocol to {' or '.join(wanted)}, or leave {given} out"
            )
    if protocol.startswith("SASL"):
        _check_login(options)
    if protocol.endswith("SSL"):
        tls.check(options)


def _check_login(options: Mapping[str, str]) -> None:
    mechanism = options.get("sasl.mechanism", "GSSAPI")
    pair = [name for name in ("sasl.username", "sasl.password") if name in options]
    if "sasl.jaas.config" in options:
        if pair:
            raise ConfigError(f"kafka: {pair[0]} and sasl.jaas.config are both set: leave one of them out")
        login = jaas.parse(options["sasl.jaas.config"])
        if mechanism != "GSSAPI" and not login.module.endswith(jaas.MODULES[mechanism]):
            raise ConfigError(
                f"kafka: sasl.jaas.config names {login.module}, but sasl.mechanism {mechanism} needs "
                f"{jaas.MODULES[mechanism]}"
            )
        found = login.options
    else:
        found = {name.removeprefix("sasl."): options[name] for name in pair}
    if mechanism in PASSWORDS and not {"username", "password"} <= found.keys():
        raise ConfigError(
            f"kafka: sasl.mechanism {mechanism} needs a name and a password: set sasl.username and sasl.password, or "
            "both in sasl.jaas.config"
        )
    if pair and mechanism not in PASSWORDS:
        raise ConfigError(
            f"kafka: {pair[0]} is set, but sasl.mechanism is {mechanism}, which has no password: needed one of "
            f"{', '.join(PASSWORDS)}"
        )


def for_spark(options: Mapping[str, str]) -> dict[str, str]:
    """As they are; only a name and a password become what Java's clients read."""
    kept = {name: value for name, value in options.items() if name not in ("sasl.username", "sasl.password")}
    if "sasl.username" in options:
        mechanism, name, password = (options[key] for key in ("sasl.mechanism", "sasl.username", "sasl.password"))
        kept["sasl.jaas.config"] = jaas.written(mechanism, name, password)
    return kept


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """``security.protocol``, ``sasl.*`` and ``ssl.*`` of librdkafka."""
    protocol = options.get("security.protocol", "PLAINTEXT")
    made = {"security.protocol": protocol} if "security.protocol" in options else {}
    if protocol.startswith("SASL"):
        made |= _librdkafka_login(options)
    if protocol.endswith("SSL"):
        made |= tls.for_librdkafka(options)
    return made


def _librdkafka_login(options: Mapping[str, str]) -> dict[str, str]:
    mechanism = options.get("sasl.mechanism", "GSSAPI")
    made = {"sasl.mechanism": mechanism}
    if mechanism in PASSWORDS:
        made["sasl.username"], made["sasl.password"] = _name_and_password(options)
        return made
    login = jaas.parse(options["sasl.jaas.config"]).options if "sasl.jaas.config" in options else {}
    if mechanism == "OAUTHBEARER":
        return made | _librdkafka_oidc(options, login)
    service = options.get("sasl.kerberos.service.name") or login.get("serviceName")
    names = {"sasl.kerberos.keytab": login.get("keyTab"), "sasl.kerberos.principal": login.get("principal")}
    found = {"sasl.kerberos.service.name": service, **names}
    return made | {name: value for name, value in found.items() if value is not None}


def _librdkafka_oidc(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    url = options.get("sasl.oauthbearer.token.endpoint.url")
    if url is None or not {"clientId", "clientSecret"} <= login.keys():
        raise ConfigError(
            "kafka: with OAUTHBEARER librdkafka fetches its tokens by itself: needed "
            "sasl.oauthbearer.token.endpoint.url, and clientId and clientSecret in sasl.jaas.config"
        )
    made = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": url}
    made |= {"sasl.oauthbearer.client.id": login["clientId"], "sasl.oauthbearer.client.secret": login["clientSecret"]}
    return made | ({"sasl.oauthbearer.scope": login["scope"]} if "scope" in login else {})


def _name_and_password(options: Mapping[str, str]) -> tuple[str, str]:
    if "sasl.username" in options:
        return options["sasl.username"], options["sasl.password"]
    login = jaas.parse(options["sasl.jaas.config"]).options
    if login.get("tokenauth", "false").lower() == "true":
        raise ConfigError(
            "kafka: sasl.jaas.config says tokenauth, but only Java's clients can log in with a delegation token: "
            "needed a name and a password, or a certificate"
        )
    return login["username"], login["password"]


def for_kafka_python(options: Mapping[str, str]) -> dict[str, Any]:
    """``security_protocol``, ``sasl_*`` and ``ssl_context``. Reads the PEM files, on the machine where it is called."""
    protocol = options.get("security.protocol", "PLAINTEXT")
    made: dict[str, Any] = {"security_protocol": protocol} if "security.protocol" in options else {}
    if protocol.startswith("SASL"):
        made |= _kafka_python_login(options)
    if protocol.endswith("SSL"):
        made["ssl_context"] = tls.context(options)
    return made


def _kafka_python_login(options: Mapping[str, str]) -> dict[str, Any]:
    mechanism = options.get("sasl.mechanism", "GSSAPI")
    made: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism in PASSWORDS:
        made["sasl_plain_username"], made["sasl_plain_password"] = _name_and_password(options)
    elif mechanism == "OAUTHBEARER":
        raise ConfigError(
            "kafka: kafka-python, which ends the transactions, cannot fetch tokens by itself, so that OAUTHBEARER "
            f"cannot be used here: needed one of {', '.join(PASSWORDS)}, or a certificate (security.protocol SSL)"
        )
    elif "sasl.kerberos.service.name" in options:
        made["sasl_kerberos_service_name"] = options["sasl.kerberos.service.name"]
    return made
