"""State of an operator rather than of a key: rows are dealt out to a fixed number of slots, each with state of its own.

::

    class Numbered(ts.state.Operator):
        output = "slot int, n long, id long"
        last = ts.state.Value("long")

        def on_slot(self, slot, rows, now):
            n = self.last.get() or 0
            for row in sorted(rows, key=lambda row: row["id"]):
                n += 1
                yield slot, n, row["id"]
            self.last.set(n)


    numbered = ts.state.operator(rows, slots=8, state=Numbered())

It is keyed state whose key is the number of a slot, and nothing else. A slot is to a state partition what a key is: it
moves as a whole when the state is dealt out to more or fewer partitions, so that nothing has to be split or merged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import functions as F

from tallystick.errors import ConfigError
from tallystick.spark.stateful import Keyed, Now, Value, keyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOT = "slot"


class Operator(Keyed):
    """What to do with the rows of one slot. Declare variables as in `Keyed`; timers come with the key ``(slot,)``."""

    slots: int
    begun_with = Value("int")
    """How many slots there were when this one got its first row."""

    @abstractmethod
    def on_slot(self, slot: int, rows: Iterator[Row], now: Now) -> Iterable[Sequence[Any]]:
        """Executor: the epoch's rows of one slot, in no order. Called once per slot and epoch that has rows of it."""

    def on_rows(self, key: tuple[Any, ...], rows: Iterator[Row], now: Now) -> Iterable[Sequence[Any]]:
        begun = self.begun_with.get()
        if begun is None:
            self.begun_with.set(self.slots)
        elif begun != self.slots:
            raise ConfigError(
                f"the operator state was begun with {begun} slots, now there are {self.slots}: rows would meet the "
                f"state of others. set slots={begun}, or start with a new checkpoint. to change how many tasks share "
                "the slots: tallystick savepoint restore --partitions"
            )
        return self.on_slot(int(key[0]), rows, now)


def operator(
    rows: DataFrame,
    slots: int,
    state: Operator,
    by: str | Sequence[str] | None = None,
    time: str = "none",
    output_mode: str = "update",
) -> DataFrame:
    """Deal rows out to slots 0 to ``slots - 1`` and hand each slot to ``state``.

    Equal rows always go to the same slot; ``by`` are the columns that decide, all of them by default. ``slots`` is the
    most tasks that can share the work; it stays as it is for the life of a checkpoint. ``time`` and ``output_mode`` are
    those of `keyed`.
    """
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise ConfigError(f"operator state needs a number of slots such as 8, found {slots!r}")
    if not isinstance(state, Operator):
        raise ConfigError(f"state needs an object of a class of yours below ts.state.Operator, found {state!r}")
    if SLOT in rows.columns:
        raise ConfigError(f"the rows have a column {SLOT!r} already: rename it before operator state")
    columns = [by] if isinstance(by, str) else list(by or rows.columns)
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        raise ConfigError(f"operator state by {', '.join(missing)}: the rows have {', '.join(rows.columns)}")
    state.slots = slots
    hashed = F.xxhash64(*(F.col(f"`{column}`") for column in columns))
    dealt = rows.withColumn(SLOT, F.pmod(hashed, F.lit(slots)).cast("int"))
    return keyed(dealt, by=SLOT, state=state, time=time, output_mode=output_mode)
