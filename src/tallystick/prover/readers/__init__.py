"""How the output of a job is read back: one small class per kind of sink.

To add a kind, write one file like `files.py` here: it is found by being there. Or declare the subclass of `Reader` in
the job file itself. `base.py` has the contract: two verbs.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tallystick.errors import UnprovenError
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.sinks.base import Sink

__all__ = ["Item", "Reader", "reader_for", "row_text"]


def reader_for(sink: Sink) -> type[Reader]:
    """The reader for a sink, by the name in its facts. `UnprovenError` if there is none."""
    for found in iter_modules(__path__):
        import_module(f"{__name__}.{found.name}")
    everyone = _subclasses(Reader)
    others = [other for reader in everyone for other in reader.beside.values()]
    known = {reader.kind: reader for reader in everyone if hasattr(reader, "kind") and reader not in others}
    if sink.facts.name not in known:
        raise UnprovenError(
            f"the prover cannot read the output of the sink {sink.target} back: it knows no reader for the kind "
            f"{sink.facts.name!r}",
            f"one of {', '.join(sorted(known))}, or a subclass of tallystick.prover.Reader in the job file",
        )
    return known[sink.facts.name]


def _subclasses(base: Any) -> list[type[Reader]]:
    return [found for direct in base.__subclasses__() for found in (direct, *_subclasses(direct))]
