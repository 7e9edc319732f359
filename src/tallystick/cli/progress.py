"""What ``tallystick run`` shows: a line per finished epoch, and on a terminal one live line below them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tallystick.cli.console import counted, for_people
from tallystick.records import Attempt, Fingerprint, totals_by_sink

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from tallystick.protocol import Finished

_COLOURS = {"written": "green", "verified": "cyan", "rewritten": "yellow", "skipped": "yellow"}


class EpochLines:
    """A context in which epochs and warnings are printed on a console; `finished` is the job's ``on_finished``."""

    def __init__(self, console: Console) -> None:
        self.epochs = 0
        self.records = 0
        self._console = console
        self._doing = ""
        self._began_s = time.monotonic()
        self._live: Status | None = None
        self._warnings = _Warnings(console)

    def __enter__(self) -> EpochLines:
        logging.getLogger("tallystick").addHandler(self._warnings)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("tallystick").removeHandler(self._warnings)
        if self._live is not None:
            self._live.stop()

    def say(self, doing: str, text: str) -> None:
        """Print a line; ``doing`` says it in fewer words in the live line that a terminal has below the epochs."""
        self._doing = doing
        self._console.print(text, soft_wrap=True)
        if not self._console.is_terminal:
            return
        if self._live is None:
            self._live = self._console.status("")
            self._live.start()
        self._live.update(f"{self._doing} · {self.summary()}")

    def finished(self, attempt: Attempt, finished: Finished) -> None:
        """Called inside the epoch, in a thread of Spark's."""
        totals = totals_by_sink(finished.votes)
        self._console.print(epoch_line(attempt, finished.how, totals), soft_wrap=True)
        self.epochs += 1
        if finished.how in ("written", "rewritten"):
            self.records += sum(total.rows for total in totals.values())
        if self._live is not None:
            self._live.update(f"{self._doing} · {self.summary()}")

    def summary(self) -> str:
        took = for_people(time.monotonic() - self._began_s)
        return f"{counted(self.epochs, 'epoch')}, {counted(self.records, 'record')}, {took}"


def epoch_line(attempt: Attempt, how: str, totals: dict[str, Fingerprint]) -> str:
    rows = " · ".join(f"{name} {total.rows:,}" for name, total in totals.items()) or "nothing"
    colour = _COLOURS.get(how, "white")
    return f"epoch {attempt.epoch:<6} [{colour}]{how:<9}[/] {rows}"


class _Warnings(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        from rich.markup import escape

        self._console.print(f"[yellow]warning[/]: {escape(record.getMessage())}", soft_wrap=True)
