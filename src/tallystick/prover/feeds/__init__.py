"""How the workload gets into a job's sources: one small class per kind of source.

To add a kind, write one file like `collection.py` here: it is found by being there. Or declare the subclass of `Feed`
in the job file itself.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tallystick.errors import UnprovenError
from tallystick.prover.feeds.base import Feed, Rows
from tallystick.records import Mode
from tallystick.sources.base import Source

__all__ = ["Feed", "Rows", "feed_for"]


def feed_for(source: Source) -> type[Feed]:
    """The feed for a source, by the name in its facts. `UnprovenError` if there is none."""
    for found in iter_modules(__path__):
        import_module(f"{__name__}.{found.name}")
    if source.facts.kept is not Mode.EXACTLY_ONCE:
        raise UnprovenError(
            f"source {source.name} cannot be replayed (it is {source.facts.guarantee.value}): what was in flight when "
            "the job died cannot be asked for again, so nothing can be said about what was lost",
            "a source that can be read again from an offset, such as collection, files or kafka",
        )
    known = {feed.kind: feed for feed in _subclasses(Feed) if hasattr(feed, "kind")}
    if source.facts.name not in known:
        raise UnprovenError(
            f"the prover does not know how to feed a source of kind {source.facts.name!r}",
            f"one of {', '.join(sorted(known))}, or a subclass of tallystick.prover.Feed in the job file",
        )
    return known[source.facts.name]


def _subclasses(base: Any) -> list[type[Feed]]:
    return [found for direct in base.__subclasses__() for found in (direct, *_subclasses(direct))]
