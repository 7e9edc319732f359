"""What a job file may say for its own proof: functions that are found by their names. All of them are optional.

::

    def prove_input(record):        the record for a source: a row; for Kafka its value, or (key, value)
    def prove_expected(records):    the rows that the job should write for these records: a list, or lists by output

``record`` is a `Numbered`: ``number``, ``key``, ``sequence`` and ``source``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tallystick.errors import JobFileError, UnprovenError
from tallystick.prover.readers.base import row_text
from tallystick.prover.workload import Numbered, Workload

INPUT, EXPECTED = "prove_input", "prove_expected"


@dataclass(frozen=True)
class Hooks:
    made: Callable[[Numbered], Any] | None = None
    expected: Callable[[list[Numbered]], Any] | None = None

    @classmethod
    def of(cls, module: ModuleType) -> Hooks:
        return cls(_function(module, INPUT), _function(module, EXPECTED))

    def expected_rows(
        self, workload: Workload, sources: tuple[str, ...], outputs: tuple[str, ...]
    ) -> dict[str, list[str]]:
        """The canonical rows of every output, as the job file expects them."""
        if self.expected is None:
            return {}
        given = self.expected(list(workload.records(sources)))
        by_output = given if isinstance(given, Mapping) else {outputs[0]: given}
        if (not isinstance(given, Mapping) and len(outputs) > 1) or set(by_output) != set(outputs):
            raise UnprovenError(
                f"{EXPECTED} gave rows for {', '.join(map(str, by_output))}, the job writes to {', '.join(outputs)}",
                f"{EXPECTED} to return a dictionary with a list of rows for each output",
            )
        return {name: _texts(rows) for name, rows in by_output.items()}


def _texts(rows: Iterable[Any]) -> list[str]:
    made = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise UnprovenError(f"{EXPECTED} gave {row!r}", f"{EXPECTED} to return rows as dictionaries")
        made.append(row_text(row))
    return made


def _function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        raise JobFileError(f"{module.__file__}: {name} is a {type(found).__name__}, needed a function")
    return found
