"""Repeats are known by their ids: the newest ids of a log, in a window of a stated size.

An id is kept as 16 bytes of its BLAKE2 hash: two different ids are taken for one with a chance of about one in 10^28
for a window of a hundred thousand. The window is rebuilt from the log when a receiver starts. Ids of segments that
retention removes are kept in one file beside the log, so that the window does not shrink with the disk.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

DIGEST_BYTES = 16


class Window:
    """The last ``size`` ids. An id that comes again within the window is a repeat, and stays where it was."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def is_new(self, name: str) -> bool:
        """Whether this id was not seen in the window; it is from now on. No id is always new."""
        return not name or self._add(digest(name))

    def load(self, digests: bytes) -> None:
        """Take over what `dump` gave."""
        for at in range(0, len(digests), DIGEST_BYTES):
            self._add(digests[at : at + DIGEST_BYTES])

    def dump(self) -> bytes:
        return b"".join(self._seen)

    def _add(self, key: bytes) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self.size:
            self._seen.popitem(last=False)
        return True


def digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digests(names: Iterable[str]) -> bytes:
    """For those that are no id at all, nothing."""
    return b"".join(digest(name) for name in names if name)
