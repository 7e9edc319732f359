"""What ``tallystick run`` shows: a line per finished epoch, and on a terminal one live line below them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tallystick.cli.console import counted, for_people
from tallystick.records import Attempt, Fingerprint, refused_by_sink, totals_by_sink

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from tallystick.protocol import Finished
    from tallystick.spark.lag import SourceLag

_COLOURS = {"written": "green", "verified": "cyan", "rewritten": "yellow", "skipped": "yellow"}


class EpochLines:
    """A context in which epochs and warnings are printed on a console; `finished` is the job's ``on_finished``."""

    def __init__(self, console: Console) -> None:
        self.epochs = 0
        self.records = 0
        self.lags: list[SourceLag] = []
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
        refused = refused_by_sink(finished.votes)
        self._console.print(epoch_line(attempt, finished.how, totals, refused) + self.lag(), soft_wrap=True)
        self.epochs += 1
        if finished.how in ("written", "rewritten"):
            self.records += sum(total.rows for total in totals.values()) - sum(refused.values())
        if self._live is not None:
            self._live.update(f"{self._doing} · {self.summary()}")

    def lag(self) -> str:
        """What waits in the sources, as far as it is known; nothing to say otherwise."""
        from rich.markup import escape

        found = [one for one in self.lags if one.lag is not None]
        if not found:
            return ""
        told = escape(f"{found[0].lag}" if len(self.lags) == 1 else ", ".join(str(one) for one in found))
        return f" [dim]· lag {told}[/]"

    def summary(self) -> str:
        took = for_people(time.monotonic() - self._began_s)
        return f"{counted(self.epochs, 'epoch')}, {counted(self.records, 'record')}, {took}"


def epoch_line(attempt: Attempt, how: str, totals: dict[str, Fingerprint], refused: dict[str, int]) -> str:
    rows = " · ".join(f"{name} {total.rows:,}{_refused(refused.get(name))}" for name, total in totals.items())
    rows = rows or "nothing"
    colour = _COLOURS.get(how, "white")
    return f"epoch {attempt.epoch:<6} [{colour}]{how:<9}[/] {rows}"


def _refused(count: int | None) -> str:
    return f" ([yellow]{count:,} refused[/])" if count else ""


class _Warnings(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        from rich.markup import escape

        self._console.print(f"[yellow]warning[/]: {escape(record.getMessage())}", soft_wrap=True)
