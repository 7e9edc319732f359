"""Everything that would go wrong at night, asked for before the first epoch: with what was found, and what to type."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tallystick.errors import SinkError
from tallystick.records import Json
from tallystick.sinks.opensearch.mapping import mapping_for, misfits

if TYPE_CHECKING:
    from tallystick.sinks.opensearch.sink import OpenSearch

log = logging.getLogger("tallystick.opensearch")

_LETTERS: Json = {
    "dynamic": "strict",
    "properties": {
        "id": {"type": "keyword", "ignore_above": 512},
        "job": {"type": "keyword"},
        "sink": {"type": "keyword"},
        "epoch": {"type": "long"},
        "slice": {"type": "long"},
        "reason": {"type": "text"},
        # kept, and not looked into: it is what the server refused
        "row": {"type": "keyword", "index": False, "doc_values": False},
    },
}
_EXISTS = "resource_already_exists_exception"


def preflight(sink: OpenSearch) -> None:
    """Driver: `SinkError` with the next step if the sink cannot work as it is declared; `OSError` if nobody answers."""
    sink.connection.ask("GET", "/")
    found = _described(sink, sink.index)
    if not found:
        found = _make(sink, sink.index, None if sink.schema is None else mapping_for(sink.schema), sink.create)
    name, description = _writable(sink, found)
    _need_kept(name, description)
    if sink.schema is not None and sink.dead_letter is None:
        wrong = next(misfits(sink.schema, description.get("mappings", {})), None)
        if wrong is not None:
            raise SinkError(
                f"opensearch: the index {name} may refuse rows: {wrong}. cast the column in the job's steps, change "
                "the mapping, or name an index for refused rows with dead_letter="
            )
    if sink.dead_letter is not None and not _described(sink, sink.dead_letter):
        _make(sink, sink.dead_letter, _LETTERS, True)


def _described(sink: OpenSearch, index: str) -> Json:
    """By the name of each index that is meant; nothing if there is none."""
    return sink.connection.ask("GET", f"/{index}", params={"flat_settings": "true"}, absent={})


def _make(sink: OpenSearch, index: str, mapping: Json, wanted: bool) -> Json:
    if not wanted:
        raise SinkError(f"opensearch: there is no index {index}: make it, or have it made with create=True")
    try:
        sink.connection.ask("PUT", f"/{index}", {} if mapping is None else {"mappings": mapping})
        log.info("made the index %s", index)
    except SinkError as error:
        if _EXISTS not in str(error):  # else another job was quicker
            raise
    return _described(sink, index)


def _writable(sink: OpenSearch, found: Json) -> tuple[str, Json]:
    """The one index that is written to."""
    if any(name.startswith(".ds-") for name in found):
        raise SinkError(
            f"opensearch: {sink.index} is a data stream, which takes no ids that can be written again: name an index"
        )
    writable = [
        name
        for name, described in found.items()
        if len(found) == 1 or described.get("aliases", {}).get(sink.index, {}).get("is_write_index")
    ]
    if len(writable) != 1:
        raise SinkError(
            f"opensearch: {sink.index} is an alias of {', '.join(sorted(found))}: needed one of them as its write "
            "index (is_write_index)"
        )
    return writable[0], found[writable[0]]


def _need_kept(name: str, description: Json) -> None:
    settings = description.get("settings", {})
    blocked = next((block for block in ("read_only", "write", "read_only_allow_delete") if _on(settings, block)), None)
    if blocked is not None:
        raise SinkError(f"opensearch: the index {name} cannot be written to: index.blocks.{blocked} is set, remove it")
    if settings.get("index.translog.durability") == "async" and settings.get("index.number_of_replicas") == "0":
        log.warning(
            "the index %s has no replica and index.translog.durability is async: a node that crashes loses documents "
            "that it acknowledged. set it to request, or use replicas",
            name,
        )


def _on(settings: Json, block: str) -> bool:
    return str(settings.get(f"index.blocks.{block}", "false")) == "true"
