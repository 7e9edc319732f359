"""Journal files: JSON that a person can read with ``cat`` and that a program can trust.

::

    {"tallystick": "attempt", "version": 1, "crc32": "5f1c…", "body": {…}}

The checksum is over the body alone, in canonical form. Whatever is not exactly this is an error that names the file:
a torn or foreign record is never skipped, because a decision could hide in it.
"""

from __future__ import annotations

import json
import zlib

from tallystick.errors import JournalCorruptError, NewerCheckpointError
from tallystick.records import Json

VERSION = 1


def encode(kind: str, body: Json) -> bytes:
    envelope = {"tallystick": kind, "version": VERSION, "crc32": _checksum(body), "body": body}
    return to_line(envelope)


def to_line(value: Json) -> bytes:
    """One line of UTF-8. A lone surrogate (from a file name that is no UTF-8) has none and is written as its escape."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def decode(kind: str, data: bytes, where: str) -> Json:
    """The body of a journal file. ``where`` names the file in errors."""
    try:
        envelope = json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise JournalCorruptError(
            f"{where} is torn or truncated: {len(data)} bytes that are no JSON ({cause}). it may hold a decision, so "
            "it is not skipped: restore it from a copy of the checkpoint",
            file=where,
        ) from cause
    check_version(envelope, where)
    if not {"crc32", "body"} <= envelope.keys() or not isinstance(envelope["body"], dict):
        raise _not_ours(where)
    if envelope["tallystick"] != kind:
        raise JournalCorruptError(
            f"{where} holds a record of kind {envelope['tallystick']!r} where {kind!r} is needed: was it renamed?",
            file=where,
        )
    if envelope["crc32"] != _checksum(envelope["body"]):
        raise JournalCorruptError(
            f"{where} does not match its checksum: it was changed or damaged. restore it from a copy of the checkpoint",
            file=where,
        )
    return envelope["body"]


def check_version(envelope: Json, where: str) -> None:
    """What a newer version wrote is told apart first: it may have changed everything but these two keys."""
    version = envelope.get("version") if isinstance(envelope, dict) and "tallystick" in envelope else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _not_ours(where)
    if version > VERSION:
        raise NewerCheckpointError(
            f"{where} was written by a newer version (format {version}, this one reads up to {VERSION}). "
            "install the newer version: pip install --upgrade tallystick",
            file=where,
        )


def _not_ours(where: str) -> JournalCorruptError:
    return JournalCorruptError(
        f"{where} was not written by this package, or was damaged: needed a file of the journal. move it away if it "
        "does not belong there, else restore it from a copy of the checkpoint",
        file=where,
    )


def _checksum(body: Json) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{zlib.crc32(canonical.encode()):08x}"
