"""Where rows come from: one file per system. `base.py` is the contract, `collection.py` the one to read first."""

from tallystick.sources.base import Source
from tallystick.sources.collection import Collection
from tallystick.sources.files import Files

__all__ = ["Collection", "Files", "Source"]
