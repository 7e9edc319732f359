"""What a reader has to know: how to point a sink at an output of the prover's own, and what is visible there.

A reader sees what any careful reader of that system sees, and no more: committed rows. The prover asks it again and
again while the job is killed, and a fresh one at the end; the differences go into the history.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tallystick.prover.place import Place
from tallystick.records import Mode
from tallystick.sinks.base import Sink


@dataclass(frozen=True)
class Item:
    """One visible row. ``row`` is its canonical text (`row_text`); ``key`` what orders it, if the sink has keys."""

    row: str
    key: str | None = None


class Reader(ABC):
    """One sink of one run, read by the prover's own process. Made from the redirected sink."""

    kind: ClassVar[str]
    """The name in the sink's `facts`."""
    servers: ClassVar[tuple[str, ...]] = ()
    """Kinds of servers (`tallystick.servers`) that must run for it."""
    ordered: ClassVar[bool] = False
    """Whether the items of one place have an order that readers may rely on."""
    on_disk: ClassVar[bool] = False
    """Whether rows end up in ``place.output``: then a disk that is full is a fault for it."""
    expires: ClassVar[bool] = False
    """Whether its server rolls back by itself what stays open for too long."""
    settles_s: ClassVar[float | None] = 2.0
    """How long after the end of an epoch all of it must be visible at the latest: more is a torn epoch.

    None where readers are held back by what is open, and see the rest of an epoch later: only its end counts then, and
    how long they are held back is a matter of the checker *stuck*.
    """

    beside: ClassVar[Mapping[str, type[Reader]]] = {}
    """Other eyes on the same output, judged on their own: what is added to its name, and who looks."""
    promise: ClassVar[Mode | None] = None
    """What these eyes must see, if that is another promise than the job's own."""
    proves: ClassVar[str] = ""
    """For the verdict, if it has to say what it is about."""

    def __init__(self, sink: Any, place: Place) -> None:
        self.sink = sink
        self.place = place

    @classmethod
    @abstractmethod
    def redirect(cls, sink: Any, name: str, place: Place) -> Sink:
        """The sink as declared, but writing to ``place.output(name)`` or ``place.output_name(name)``. Pure.

        A subclass of the user's must stay that subclass: copy the object and change where it writes.
        """

    @classmethod
    def prepare(cls, sink: Any, place: Place) -> None:
        """Once, before a run: make what the redirected sink needs to find, such as a topic or a table."""

    @classmethod
    def conclude(cls, sink: Any, place: Place) -> None:
        """Once, after a run and its last reading: undo what `prepare` left running."""

    @classmethod
    def latest_only(cls, sink: Any) -> bool:
        """Whether later rows replace earlier ones. Then every row has a place of its own in `read`: what replaces it
        comes in the same place, and whoever sees a row knows that those before it were there."""
        return False

    @abstractmethod
    def read(self) -> Mapping[str, Sequence[Item]]:
        """All rows that are visible now, from the first one on, by place (file, partition, table).

        Called about five times a second, so keep what cannot change; a place whose items are the same object as
        before is taken as unchanged. A server that does not answer just now is a `SinkError`.
        """

    def settle(self) -> None:
        """No job runs: wait until what is committed is visible. Raises `SinkError` if something stays open."""

    def close(self) -> None:
        """Let go of connections."""


def row_text(row: Mapping[str, Any]) -> str:
    """The same text for the same row, whoever read it."""
    return json.dumps(dict(row), sort_keys=True, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
