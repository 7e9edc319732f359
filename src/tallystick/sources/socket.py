"""Sockets, through a receiver log: exactly-once from receipt."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass, field

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.receiver.framing import FRAMINGS
from tallystick.records import Json, Mode
from tallystick.sources.received import ReceivedSource, ReceiverSettings


@dataclass(frozen=True)
class Socket(ReceivedSource):
    """Records that senders push through sockets, kept in a receiver log from the moment they arrive.

    ``listen`` takes many senders on one address, ``host:port``; ``connect`` takes its place and reads from one server,
    again and again if the connection is lost. ``framing`` says where records end: ``lines``, ``length`` (four bytes
    before each record, the highest first) or ``datagrams`` (UDP). ``encoding`` makes ``value`` a text, and refuses what
    is none; with None it is bytes.

    A sender gets no answer, so it cannot know what arrived: whatever was under way when a connection broke or the
    receiver was killed is lost, and datagrams may be lost at any time. Half a record at the end of a connection is a
    dead letter. From the log on, everything is exactly-once.
    """

    facts = SourceFacts(
        "socket",
        Mode.AT_MOST_ONCE,
        "from receipt exactly-once: appended to the receiver log and synced, then read by offset",
        "what was lost on its way to the receiver is not known; the folder of the log is one that all workers see",
        from_receipt=Mode.EXACTLY_ONCE,
    )

    log: str | os.PathLike[str]
    listen: str | None = field(default=None, kw_only=True)
    connect: str | None = field(default=None, kw_only=True)
    framing: str = field(default="lines", kw_only=True)
    encoding: str | None = field(default="utf-8", kw_only=True)
    partitions: int = field(default=1, kw_only=True)
    max_records_per_epoch: int | None = field(default=None, kw_only=True)
    receiver: ReceiverSettings = field(default=ReceiverSettings(), kw_only=True)

    def __post_init__(self) -> None:
        self._check()
        if self.framing not in FRAMINGS:
            raise ConfigError(f"socket: framing is {self.framing!r}, needed one of {', '.join(FRAMINGS)}")
        if (self.listen is None) == (self.connect is None):
            raise ConfigError("socket: needed either listen='host:port' or connect='host:port'")
        if self.framing == "datagrams" and self.listen is None:
            raise ConfigError("socket: datagrams are received with listen=, not with connect=")
        address(self.listen or self.connect or "")
        if self.encoding is not None:
            need_encoding("socket", self.encoding)

    @property
    def name(self) -> str:
        return f"socket:{self.listen or self.connect}"

    @property
    def text(self) -> str | None:
        return self.encoding

    def inlet(self) -> Json:
        return {
            "kind": "socket",
            "framing": self.framing,
            "listen": address(self.listen) if self.listen is not None else None,
            "connect": address(self.connect) if self.connect is not None else None,
            "encoding": self.encoding,
            "max_record_bytes": self.receiver.max_record_bytes,
        }


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"not an address: {text!r}, needed host:port such as 127.0.0.1:9999")
    return host.strip("[]"), int(port)


def need_encoding(source: str, encoding: str) -> None:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigError(f"{source}: there is no encoding {encoding!r}, needed such as 'utf-8', or None") from None
