"""``sasl.jaas.config``: how Java's clients are told who they are, read and written by Kafka's own rules.

One login module, a control flag, options, and a semicolon at the end::

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="s3\\"cret";

Values with anything but letters, digits, ``_ - $ .`` need quotes, and so do those that begin with a digit. Inside
quotes a backslash escapes as in C. Errors never show a value: it may be the password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tallystick.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
MODULES = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM, "OAUTHBEARER": OAUTH, "GSSAPI": KERBEROS}

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<word>[A-Za-z_$\xa0-\xff-][A-Za-z0-9_$.\xa0-\xff-]*)
      | "(?P<double>(?:\\.|[^"\\\n\r])*)"
      | '(?P<single>(?:\\.|[^'\\\n\r])*)'
      | (?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_EXAMPLE = f'{PLAIN} required username="NAME" password="PASSWORD";'


@dataclass(frozen=True)
class Login:
    """One login module and its options."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse(text: str) -> Login:
    """The login module of a ``sasl.jaas.config``. Raises `ConfigError` for whatever Kafka's clients would refuse."""
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[0][0] == "sign":
        raise _wrong("it begins with no login module and control flag")
    (_, module), (_, flag), *rest = tokens
    if flag.lower() not in _FLAGS:
        raise _wrong(f"after the login module {module} comes no control flag, needed one of {', '.join(_FLAGS)}")
    if not rest or rest[-1] != ("sign", ";"):
        raise _wrong("there is no ';' at the end")
    return Login(module, _options(rest[:-1]))


def _options(tokens: list[tuple[str, str]]) -> dict[str, str]:
    if ("sign", ";") in tokens:
        raise _wrong("it holds more than one login module")
    options: dict[str, str] = {}
    for start in range(0, len(tokens), 3):
        name, *rest = tokens[start : start + 3]
        if name[0] == "sign" or len(rest) < 2 or rest[0] != ("sign", "=") or rest[1][0] == "sign":
            last = f"after {tokens[start - 3][1]}=…" if start else "after the control flag"
            raise _wrong(f"{last} comes no further NAME=VALUE; values with signs or a leading digit need quotes")
        options[name[1]] = rest[1][1]
    return options


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(
                f"character {position + 1} fits nothing: a value with signs or a leading digit needs quotes, and "
                "quotes need an end on the same line"
            )
        position = match.end()
        kind = str(match.lastgroup)
        if kind in ("double", "single"):
            found.append(("value", _ESCAPE.sub(_unescaped, match[kind])))
        elif kind != "skipped":
            found.append((kind, match[kind]))
    return found


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPED.get(what, what)


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"kafka: sasl.jaas.config cannot be read: {what}. needed such as {_EXAMPLE}")


def written(mechanism: str, username: str, password: str) -> str:
    """The ``sasl.jaas.config`` of a name and a password."""
    return f"{MODULES[mechanism]} required username={_quoted(username)} password={_quoted(password)};"


def _quoted(value: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(plain, escaped)
    return f'"{value}"'
