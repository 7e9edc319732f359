"""Where one record of a byte stream ends and the next begins. Pure: bytes in, records out.

A record that is larger than allowed is refused, not cut: its first bytes are kept as a dead letter.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

from tallystick.receiver.format import Record
from tallystick.receiver.inlet import Received, Refused

KEPT_OF_REFUSED_BYTES = 64 << 10
_LENGTH = struct.Struct(">I")


class Framing(ABC):
    """One connection's bytes. ``attributes`` are given to each of its records."""

    def __init__(self, max_bytes: int, encoding: str | None, attributes: dict[str, str]) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._attributes = attributes
        self._rest = b""
        self.lost_its_way = False
        """Set when what follows cannot be told apart any more: the connection must be closed."""

    @abstractmethod
    def feed(self, data: bytes) -> list[Received]:
        """The records that these bytes complete."""

    def end(self, why: str) -> list[Received]:
        """The connection is over: half a record is no record."""
        rest, self._rest = self._rest, b""
        return [self.refused(rest, f"{why} in the middle of a record, after {len(rest)} bytes")] if rest else []

    def received(self, value: bytes) -> Received:
        if len(value) > self._max_bytes:
            return self.refused(value, f"it has {len(value)} bytes, at most {self._max_bytes} are allowed")
        if self._encoding is not None:
            try:
                value.decode(self._encoding)
            except UnicodeDecodeError as error:
                return self.refused(value, f"it is no {self._encoding}: {error.reason} at byte {error.start}")
        return Record(value, attributes=self._attributes)

    def refused(self, value: bytes, reason: str) -> Refused:
        return Refused(reason, Record(value[:KEPT_OF_REFUSED_BYTES], attributes=self._attributes))


class Lines(Framing):
    """Records end with a line feed; a carriage return before it belongs to it. Empty lines are records."""

    _skipping = False

    def feed(self, data: bytes) -> list[Received]:
        *whole, rest = (self._rest + data).split(b"\n") if not self._skipping else self._after_skipped(data)
        self._rest = rest
        made = [self.received(line.removesuffix(b"\r")) for line in whole]
        if len(rest) > self._max_bytes:
            self._skipping, self._rest = True, b""
            made.append(self.refused(rest, f"a line of more than {self._max_bytes} bytes"))
        return made

    def _after_skipped(self, data: bytes) -> list[bytes]:
        """The rest of a line that was refused goes with it."""
        at = data.find(b"\n")
        if at < 0:
            return [b""]
        self._skipping = False
        return data[at + 1 :].split(b"\n")


class Lengths(Framing):
    """Each record is preceded by its length: four bytes, the highest first."""

    def feed(self, data: bytes) -> list[Received]:
        rest, at = self._rest + data, 0
        made: list[Received] = []
        while len(rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, at)
            if length > self._max_bytes:
                self.lost_its_way, self._rest = True, b""
                made.append(self.refused(rest[at:], f"a frame of {length} bytes, at most {self._max_bytes} allowed"))
                return made
            if len(rest) - at - _LENGTH.size < length:
                break
            made.append(self.received(rest[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        self._rest = rest[at:]
        return made


class Datagrams(Framing):
    """Each datagram is a record."""

    def feed(self, data: bytes) -> list[Received]:
        return [self.received(data)]


FRAMINGS: dict[str, Callable[[int, str | None, dict[str, str]], Framing]] = {
    "lines": Lines,
    "length": Lengths,
    "datagrams": Datagrams,
}
