"""Indices of OpenSearch for tests: named, read, and never shared."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any
from urllib.parse import urlsplit


def ask(address: str, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def new_index(address: str, properties: Any = None, **settings: Any) -> str:
    """Made if it gets ``properties`` or settings; else only named."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    if properties is not None or settings:
        mappings = {} if properties is None else {"mappings": {"properties": properties}}
        made = ask(address, "PUT", f"/{name}", {**mappings, **settings})
        assert made.get("acknowledged"), made
    return name


def documents(address: str, index: str) -> list[tuple[str, Any]]:
    """Every document with its id, as a search sees it now; at most 10,000."""
    ask(address, "POST", f"/{index}/_refresh")
    found = ask(address, "POST", f"/{index}/_search", {"size": 10000, "version": True})
    return sorted((hit["_id"], hit["_source"]) for hit in found["hits"]["hits"])
