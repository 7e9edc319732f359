"""The batches for one partition that are not acknowledged yet: sent in order, and sent again in order.

A broker takes the batches of a producer only one after the other, by their sequence numbers, and one that it has
already taken is acknowledged once more and not written again. It remembers five. So:

1.  Five at the most are under way.
2.  When one of them fails, or its answer is lost, nothing more is sent until all that are under way are answered; then
    everything that is not acknowledged goes out again, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

UNDER_WAY_MAX = 5


@dataclass(eq=False)
class Batch:
    """Ready for the wire. ``key`` and ``value_bytes`` are for errors: of its largest record."""

    place: tuple[str, int]
    data: bytes
    count: int
    key: bytes | None
    value_bytes: int
    under_way: bool = False


@dataclass
class Outbox:
    most: int = UNDER_WAY_MAX
    _waiting: deque[Batch] = field(default_factory=deque)
    _under_way: int = 0
    _again: bool = False
    sequence: int = 0

    def put(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self.sequence += batch.count

    def __len__(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._waiting)

    def is_first(self, batch: Batch) -> bool:
        """All before it are acknowledged."""
        return self._waiting[0] is batch

    def next(self) -> Batch | None:
        """What may be sent now."""
        if self._again or self._under_way >= self.most:
            return None
        return next((batch for batch in self._waiting if not batch.under_way), None)

    def sent(self, batch: Batch) -> None:
        batch.under_way = True
        self._under_way += 1

    def acknowledged(self, batch: Batch) -> None:
        self._answered(batch)
        self._waiting.remove(batch)

    def failed(self, batch: Batch) -> None:
        self._again = True
        self._answered(batch)

    def resealed(self, seal: Callable[[bytes], bytes]) -> None:
        """Every batch anew; none of them is under way."""
        for batch in self._waiting:
            batch.data = seal(batch.data)

    def _answered(self, batch: Batch) -> None:
        batch.under_way = False
        self._under_way -= 1
        if not self._under_way:
            self._again = False
