"""Executor: one slice of one sink, from its rows to its vote; and what becomes of rows that the target refuses.

Refused rows leave as `Refused` and arrive at the writer of the dead letters, which is one of these too. When the epoch
was decided before, nobody is asked what is refused: the decision has the hash of each such row, and as many rows with
that hash are taken out here (`docs/decisions/0013-dead-letters.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick import killpoints
from tallystick.errors import RowRefusedError
from tallystick.records import HASH_MASK, Fingerprint, Json, Vote
from tallystick.sinks.base import SliceContext, TransactionalSink
from tallystick.sinks.letters import as_json, letters, shortened
from tallystick.sinks.refusals import Refusal, kept

DEAD_LETTERS = "dead-letters"
"""What the output for refused rows is called."""
REFUSED_MAX = 10_000
"""Of one slice of one sink: the journal keeps the hash of each."""

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Refused:
    """Rows of one slice that its target refuses, their hashes and the reasons; counted from ``first``."""

    context: SliceContext
    rows: pa.RecordBatch
    hashes: Hashes
    reasons: Sequence[str]
    first: int


class SliceWriter:
    """Counts all rows, and stages them if they are wanted. Empty slices open nothing.

    ``known`` are the refused rows of an epoch that was decided before: hashes by reason.
    """

    def __init__(
        self,
        sink: TransactionalSink[Any],
        context: SliceContext,
        wanted: bool,
        known: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._sink = sink
        self._context = context
        self._wanted = wanted
        self._open: Any = None
        self._committable: Json = None
        self._fingerprint = Fingerprint()
        self._known: dict[int, list[str]] = {}
        for why, hashes in (known or {}).items():
            for one in hashes:
                self._known.setdefault(one, []).append(why)
        self._refused: dict[str, list[int]] = {}
        self._refused_rows = 0

    def write(self, rows: pa.RecordBatch, hashes: pa.Array) -> Iterator[Refused]:
        """Take these rows. Gives those that are refused; they are counted here, and written by somebody else."""
        if rows.num_rows == 0:
            return
        marks: Hashes = hashes.to_numpy(zero_copy_only=False).view(np.uint64)
        self._fingerprint += Fingerprint(rows.num_rows, _sum(marks))
        if self._known:
            known = self._known_among(marks)
            yield from self._out(rows, marks, known)
            mask = kept(rows.num_rows, known)
            rows, marks = rows.filter(mask), marks[mask.to_numpy(zero_copy_only=False)]
        if self._wanted and rows.num_rows:
            yield from self._out(rows, marks, self._staged(rows))

    def write_letters(self, refused: Refused) -> None:
        """Take refused rows of another slice as dead letters."""
        self._fingerprint += Fingerprint(refused.rows.num_rows, _sum(refused.hashes))
        if not self._wanted:
            return
        made = letters(refused.context, refused.rows, refused.reasons, refused.first)
        try:
            self._staged(self._sink.letters(made))
        except RowRefusedError as error:
            raise RowRefusedError(
                f"the dead-letter sink cannot hold a row that {refused.context.sink} refuses "
                f"({refused.reasons[0]}): {error}. nothing of the epoch was published. use a sink for dead letters "
                "that takes every row, such as ts.sinks.Files(path)"
            ) from None

    @property
    def waits(self) -> bool:
        """Whether it may be pre-committed later, together with other slices of its task."""
        return self._sink.together

    def vote(self) -> Vote:
        return vote_all([self])[0]

    def _voted(self) -> Vote:
        refused = {why: tuple(sorted(hashes)) for why, hashes in sorted(self._refused.items())}
        return Vote(self._context.sink, self._context.slice, self._fingerprint, self._committable, refused)

    def give_up(self) -> None:
        if self._open is not None:
            transaction, self._open = self._open, None
            self._sink.rollback(transaction)

    def _staged(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if self._open is None:
            killpoints.reach("before-begin", self._context.attempt.epoch)
            self._open = self._sink.begin_transaction(self._context)
        return self._sink.write(self._open, rows) or ()

    def _known_among(self, marks: Hashes) -> list[Refusal]:
        """As many rows as were refused before, by their hashes; of equal ones the first, for they are equal."""
        found = []
        for place in np.flatnonzero(np.isin(marks, np.array(list(self._known), np.uint64))):
            reasons = self._known.get(int(marks[place]), [])
            if reasons:
                found.append(Refusal(int(place), reasons.pop(0)))
        return found

    def _out(self, rows: pa.RecordBatch, marks: Hashes, refused: Sequence[Refusal]) -> Iterator[Refused]:
        if not refused:
            return
        places = [refusal.place for refusal in refused]
        reasons = [shortened(refusal.why) for refusal in refused]
        taken, first = rows.take(pa.array(places)), self._refused_rows
        self._refused_rows += len(places)
        if self._refused_rows > REFUSED_MAX:
            row = as_json(taken.slice(0, 1).to_pylist()[0])
            raise RowRefusedError(
                f"{self._sink.target} refuses over {REFUSED_MAX} rows of one slice, too many for dead letters: this is "
                f"no handful of bad rows. one of them is {row[:200]}: {reasons[0]}. nothing of the epoch was "
                "published. correct the rows or the target, then start the job again"
            )
        for place, why in zip(places, reasons, strict=True):
            self._refused.setdefault(why, []).append(int(marks[place]))
        yield Refused(self._context, taken, marks[places], reasons, first)


def vote_all(writers: Sequence[SliceWriter]) -> list[Vote]:
    """The votes of several slices of one sink, in order: pre-committed together."""
    for writer in writers:
        killpoints.reach("before-pre-commit", writer._context.attempt.epoch)
    holding = [writer for writer in writers if writer._open is not None]
    if holding:
        committables = holding[0]._sink.pre_commit_all([writer._open for writer in holding])
        for writer, committable in zip(holding, committables, strict=True):
            writer._committable, writer._open = committable, None
    return [writer._voted() for writer in writers]


def _sum(marks: Hashes) -> int:
    return int(np.add.reduce(marks)) & HASH_MASK
