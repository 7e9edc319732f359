"""What a checker answers: valid, invalid or unknown, how often it was wrong, and some of the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tallystick.records import Json

SHOWN = 5


class Verdict(str, Enum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"

    @classmethod
    def worst(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Invalid if any is, else unknown if any is; nothing at all is unknown."""
        found = set(verdicts)
        if cls.INVALID in found:
            return cls.INVALID
        return cls.VALID if found == {cls.VALID} else cls.UNKNOWN


@dataclass(frozen=True)
class Answer:
    verdict: Verdict
    count: int = 0
    evidence: tuple[str, ...] = ()

    @classmethod
    def of(cls, wrongs: Sequence[str], count: int | None = None) -> Answer:
        """Valid if nothing is wrong; otherwise invalid, with the first few wrongs as evidence."""
        if not wrongs:
            return cls(Verdict.VALID)
        return cls(Verdict.INVALID, len(wrongs) if count is None else count, tuple(wrongs[:SHOWN]))

    @classmethod
    def unknown(cls, why: str) -> Answer:
        return cls(Verdict.UNKNOWN, 0, (why,))

    def to_json(self) -> Json:
        return {"verdict": self.verdict.value, "count": self.count, "evidence": list(self.evidence)}


NO_LAST_READ = Answer.unknown("no reader read the output when everything was over")
