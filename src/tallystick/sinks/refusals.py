"""Rows that a target refuses: which ones, and why.

A sink that is told to (`SliceContext.dead_letters`) writes the others and gives these back; else the first one fails
the epoch, with the row's key and the words of the target. What becomes of them: `docs/decisions/0013-dead-letters.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError

if TYPE_CHECKING:
    from tallystick.sinks.base import SliceContext


@dataclass(frozen=True, order=True)
class Refusal:
    """One row of a batch that was not written: its place in the batch, the reason, and the column to blame, if any."""

    place: int
    why: str
    column: str = ""


def where(wrong: pa.Array, why: str, column: str = "") -> Iterator[Refusal]:
    """A refusal for each row that is marked; a null marks nothing."""
    if pc.any(wrong).as_py():
        for place in np.flatnonzero(wrong.fill_null(False).to_numpy(zero_copy_only=False)):
            yield Refusal(int(place), why, column)


def screened(
    context: SliceContext, found: Iterable[Refusal], error: Callable[[Refusal], RowRefusedError]
) -> list[Refusal]:
    """By place, with the first reason for each row. Without a dead-letter sink the first that is found is raised."""
    first: dict[int, Refusal] = {}
    for refusal in found:
        if not context.dead_letters:
            raise error(refusal)
        first.setdefault(refusal.place, refusal)
    return [first[place] for place in sorted(first)]


def without(rows: pa.RecordBatch, refused: Sequence[Refusal]) -> pa.RecordBatch:
    """The rows that are left."""
    return rows.filter(kept(rows.num_rows, refused)) if refused else rows


def kept(count: int, refused: Sequence[Refusal]) -> pa.Array:
    """Marks the rows that are left, of so many."""
    mask = np.ones(count, bool)
    mask[[refusal.place for refusal in refused]] = False
    return pa.array(mask)
