"""What a source holds that a job has not read yet, in the units that the source can count cheaply."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.records import Json


@dataclass(frozen=True)
class Lag:
    """Amounts that wait; None for units that a source does not count.

    records    as the source numbers them
    files      and ``bytes`` in them
    behind_ms  for how long the oldest of what waits has been there
    notice     what a person should know about the source beside that, and what to do; None if all is well
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    behind_ms: int | None = None
    notice: str | None = None

    @property
    def waits(self) -> bool:
        """Whether there is anything to read."""
        return any(self.to_json().values())

    def to_json(self) -> dict[str, Json]:
        """By unit, those that are counted."""
        amounts = {"records": self.records, "files": self.files, "bytes": self.bytes, "behind_ms": self.behind_ms}
        return {unit: amount for unit, amount in amounts.items() if amount is not None}

    def __str__(self) -> str:
        """Such as ``1,200 records``, ``3 files, 4,096 bytes``, ``1.5 s behind`` or ``nothing``."""
        if not self.waits:
            return "nothing"
        counted = {"record": self.records, "file": self.files, "byte": self.bytes}
        words = [f"{amount:,} {unit}{'' if amount == 1 else 's'}" for unit, amount in counted.items() if amount]
        if self.behind_ms:
            words.append(f"{self.behind_ms / 1000:,.1f} s behind")
        return ", ".join(words)
