"""Where a job is in a Kinesis stream: a position per shard, and which shards may be read. Pure.

A position is a text, so that it can be read in a checkpoint:

==============  ================================================================
``-``           nothing is read yet: begin with the oldest record
``@SECONDS``    nothing is read yet: begin with what arrived since then
``SEQUENCE``    everything up to this record is read
``…!``          and the shard is closed and read to its end
==============  ================================================================

*Parents before children.* When a shard is split or two are merged, it is closed and its children begin. A child is
added to the offset only when its parents stand there as read to their end: so no epoch has records of both, and what is
older comes first. A parent that the stream has forgotten, by retention, counts as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BEGINNING = "-"
CLOSED = "!"


@dataclass(frozen=True)
class Shard:
    """``closed``: nothing is added any more; its end comes as the end of its pages."""

    name: str
    parents: tuple[str, ...]
    hashes: range
    closed: bool = False


def is_drained(position: str) -> bool:
    return position.endswith(CLOSED)


def sequence_of(position: str) -> str | None:
    """The last record that was read; None if none was."""
    bare = position.removesuffix(CLOSED)
    return None if not bare or bare == BEGINNING or bare.startswith("@") else bare


def known_shards(positions: Mapping[str, str], shards: Iterable[Shard]) -> dict[str, str]:
    """The positions with children added whose parents are read, and without shards that are read and forgotten."""
    listed = {shard.name: shard for shard in shards}
    kept = {name: at for name, at in positions.items() if name in listed or not is_drained(at)}
    for shard in sorted(listed.values(), key=lambda each: each.name):
        parents = [parent for parent in shard.parents if parent in listed]
        begun = any(child in positions for child in descendants(shard.name, listed))
        if shard.name not in kept and not begun and parents_are_read(parents, positions):
            kept[shard.name] = BEGINNING
    return kept


def parents_are_read(parents: Iterable[str], positions: Mapping[str, str]) -> bool:
    return all(is_drained(positions.get(parent, "")) for parent in parents)


def descendants(name: str, listed: Mapping[str, Shard]) -> set[str]:
    """Every shard that came out of this one: if one of them is being read, this one was read long ago."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        parent = waiting.pop()
        children = [shard.name for shard in listed.values() if parent in shard.parents and shard.name not in found]
        found.update(children)
        waiting += children
    return found


def first_shards(shards: Iterable[Shard]) -> list[str]:
    """Those to begin with: whose parents the stream has forgotten, or never had."""
    listed = {shard.name for shard in shards}
    return sorted(shard.name for shard in shards if not listed & set(shard.parents))


def in_words(positions: Mapping[str, str], shown: int = 8) -> str:
    """Such as ``0=…1234 1=beginning``: sequence numbers have 56 digits, of which the last ones differ."""
    words = [f"{_short(name)}={_position_in_words(at)}" for name, at in sorted(positions.items())]
    more = len(words) - shown
    return " ".join([*words[:shown], f"and {more} more"] if more > 0 else words) or "no shards"


def _short(name: str) -> str:
    return name.removeprefix("shardId-").lstrip("0") or "0"


def _position_in_words(position: str) -> str:
    sequence = sequence_of(position)
    closed = " (closed)" if is_drained(position) else ""
    if sequence is None:
        bare = position.removesuffix(CLOSED)
        return (f"since {bare[1:]}" if bare.startswith("@") else "beginning") + closed
    return f"…{sequence[-12:]}{closed}"
