"""Requests to the server, and what its answers mean: unreachable now, or refused.

A client lives as long as its process: workers are used again from epoch to epoch.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tallystick.errors import ConfigError, SinkError
from tallystick.records import Json
from tallystick.sinks.extras import needed
from tallystick.sinks.tls import Tls

PORTS = {"http": 9200, "https": 443}
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which trying again may help: too many requests, or a server that is not itself just now."""


@dataclass(frozen=True)
class Connection:
    """How to reach the servers. Travels to executors; shown without the password."""

    urls: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    request_timeout_s: float = 30.0

    @classmethod
    def of(cls, given: str | Iterable[str], *details: Any) -> Connection:
        """``given`` as one URL, several with commas, or a list. `ConfigError` if one is no URL, or has a password."""
        listed = given.split(",") if isinstance(given, str) else list(given)
        if not listed:
            raise ConfigError("opensearch: hosts needs at least one URL, found none")
        return cls(tuple(_url(entry) for entry in listed), *details)

    def ask(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        params: Mapping[str, str] | None = None,
        absent: Json = None,
    ) -> Json:
        """The answer as JSON; ``absent`` if it is 404. `OSError` if the server cannot answer now, else `SinkError`,
        with HTTP's status in its details."""
        errors = needed("opensearchpy.exceptions", "opensearch-py", "opensearch")
        # the client has a header of that very name by default: another spelling would be sent beside it
        headers = {"content-type": "application/x-ndjson" if isinstance(body, bytes) else "application/json"}
        try:
            return _client_for(self).transport.perform_request(method, path, params or {}, body, headers=headers)
        except errors.ConnectionError as error:
            raise ConnectionError(f"opensearch: {', '.join(self.urls)} cannot be reached: {_words(error)}") from None
        except errors.TransportError as error:
            if error.status_code == 404 and absent is not None:
                return absent
            if error.status_code in PASSING:
                raise ConnectionError(f"opensearch: {', '.join(self.urls)} answers {_words(error)}") from None
            raise SinkError(self._refusal(method, path, error), status=error.status_code) from None

    def _refusal(self, method: str, path: str, error: Any) -> str:
        if error.status_code in (401, 403):
            who = f"the user {self.username!r}" if self.username is not None else "requests without a user"
            return (
                f"opensearch: {', '.join(self.urls)} refuses {who} ({error.status_code}): needed username=, password="
            )
        return f"opensearch: {method} {path} was refused: {_words(error)}"


_clients: dict[Connection, Any] = {}
_lock = threading.Lock()


def _client_for(connection: Connection) -> Any:
    with _lock:
        if connection not in _clients:
            _clients[connection] = _made(connection)
        return _clients[connection]


def _made(connection: Connection) -> Any:
    module = needed("opensearchpy", "opensearch-py", "opensearch")
    login = None if connection.username is None else (connection.username, connection.password or "")
    tls = connection.tls
    extra = {} if tls is None else {"ssl_context": tls.context(), "ssl_assert_hostname": tls.check_hostname}
    return module.OpenSearch(
        list(connection.urls),
        http_auth=login,
        timeout=connection.request_timeout_s,
        max_retries=0,  # a retry is ours: it must be bounded, and told
        http_compress=False,
        **extra,
    )


def _url(entry: Any) -> str:
    if not isinstance(entry, str) or not entry.strip():
        raise ConfigError(f"opensearch: hosts needs URLs such as 'http://localhost:9200', found {entry!r}")
    parts = urlsplit(entry.strip() if "://" in entry else f"http://{entry.strip()}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("opensearch: a URL in hosts has a user in it: give username= and password= apart")
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.path.strip("/"):
        raise ConfigError(f"opensearch: {entry!r} is not a URL such as 'http://localhost:9200'")
    return f"{parts.scheme}://{parts.hostname}:{parts.port or PORTS[parts.scheme]}"


def _words(error: Any) -> str:
    """What the server or the connection says, without the classes of three libraries around it."""
    info = getattr(error, "info", None)
    if isinstance(info, dict):
        found = info.get("error", info)
        return reason(found) if isinstance(found, dict) else str(found)
    said = str(info if isinstance(info, Exception) else error)
    return re.sub(r"<[^>]*object at 0x[0-9a-f]+>:? ?", "", said)


def reason(error: Json) -> str:
    """The type and reason of a server's error, and of what caused it."""
    said = f"{error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by")
    return f"{said} ({cause.get('reason')})" if isinstance(cause, dict) and cause.get("reason") else said
