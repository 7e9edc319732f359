"""The source contract as tests. Subclass `SourceContract` in a test file, give the hooks, run pytest::

    from tallystick.testing import SourceContract

    class TestMySource(SourceContract):
        def make_source(self, tmp_path):
            return MySource(...)                  # about ten records per epoch, so that there are several

        def feed(self, source, numbers):
            ...                                   # make these records available

        def number(self, row):
            return row.id                         # which one a row is

Every test runs real queries of Spark, in the session of a fixture called ``spark``, and compares what each epoch gave.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tallystick.sources.base import Source
from tallystick.sources.lag import Lag
from tallystick.spark.offsets import source_log

PATIENCE_S = 120
FAILS_AT = 1
LATER = 5


class _KilledError(Exception):
    """An epoch that fails on purpose: Spark must run it again."""


class Seen:
    """What each epoch gave, partition by partition; an epoch that runs again is added, not replaced."""

    def __init__(self, contract: SourceContract, fail_at: int | None = None) -> None:
        self.epochs: dict[int, list[list[list[int]]]] = defaultdict(list)
        self._contract = contract
        self._fail_at = fail_at

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        found = [[self._contract.number(row) for row in part] for part in frame.rdd.glom().collect()]
        self.epochs[epoch].append([part for part in found if part])
        if epoch == self._fail_at:
            raise _KilledError(f"epoch {epoch} fails on purpose")

    def numbers(self, without: int | None = None) -> list[int]:
        """Of every epoch once, in the order of epochs."""
        wanted = sorted(epoch for epoch in self.epochs if epoch != without)
        return [number for epoch in wanted for part in self.epochs[epoch][-1] for number in part]


@dataclass(frozen=True)
class History:
    """What one source went through: a run that failed, the rest, the last epoch once more, and what came later."""

    source: Source
    failed: Seen
    rest: Seen
    replayed: Seen
    later: Seen
    offsets: dict[int, str]
    lags: dict[int, Lag | None]
    """After every epoch, asked when everything was read."""
    grown_lag: Lag | None
    """After the last of these epochs, asked when more had come."""


class SourceContract:
    """What every source must keep: the same offsets give the same records, wherever a run ended."""

    records: ClassVar[int] = 40
    """How many records the tests feed at once."""

    keeps_order: ClassVar[bool] = True
    """Whether records come in the order in which they were fed, partition after partition."""
    same_numbers: ClassVar[bool] = True
    """Whether a replay numbers the slices of an epoch as before. If not, they are compared whatever their order."""

    def make_source(self, tmp_path: Path) -> Source:
        """A source without records, or with exactly `records` of them; called once per class."""
        raise pytest.UsageError(f"{type(self).__name__} needs make_source(self, tmp_path), which returns a source")

    def feed(self, source: Any, numbers: Sequence[int]) -> None:
        """Make the records with these numbers available, in this order; they must be when it returns."""
        raise pytest.UsageError(f"{type(self).__name__} needs feed(self, source, numbers)")

    def number(self, row: Any) -> int:
        """The number that `feed` gave to this row."""
        raise pytest.UsageError(f"{type(self).__name__} needs number(self, row)")

    def grown(self, source: Any, numbers: Sequence[int]) -> Source:
        """The source with these records more. Sources whose records are part of their declaration make a new one."""
        self.feed(source, numbers)
        return source  # type: ignore[no-any-return]

    @pytest.fixture(scope="class")
    @classmethod
    def history(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
        """Four queries on one checkpoint, once for all tests: starting one takes longer than comparing."""
        contract = cls()
        folder = tmp_path_factory.mktemp("source-contract")
        source = contract.make_source(folder)
        try:
            yield contract._live(spark, source, folder / "checkpoint")
        finally:
            source.release()

    def _live(self, spark: SparkSession, source: Source, checkpoint: Path) -> History:
        source.load(spark)  # a receiver must be there before anybody sends
        self.feed(source, range(self.records))
        failed = self._run(spark, source, checkpoint, fail_at=FAILS_AT)
        rest = self._run(spark, source, checkpoint)
        offsets = _offsets(checkpoint)
        _forget_commit(checkpoint, max(rest.epochs))
        replayed = self._run(spark, source, checkpoint)
        lags = {epoch: self._lag(source, offset, checkpoint) for epoch, offset in offsets.items()}
        grown = self.grown(source, range(self.records, self.records + LATER))
        grown_lag = self._lag(grown, offsets[max(offsets)], checkpoint)
        try:
            later = self._run(spark, grown, checkpoint)
        finally:
            grown.release()
        return History(source, failed, rest, replayed, later, offsets, lags, grown_lag)

    def _lag(self, source: Source, offset: str, checkpoint: Path) -> Lag | None:
        return source.lag(json.loads(offset), partial(source_log, str(checkpoint), 0, None))

    def test_every_record_is_read_once(self, history: History) -> None:
        """Though a run failed in between: what it had done stays done, and no offset is skipped."""
        epochs = {**history.failed.epochs, **history.rest.epochs}
        assert len(epochs) > FAILS_AT + 1, "too few epochs to show anything: make_source must bound them"
        found = [number for epoch in sorted(epochs) for part in epochs[epoch][-1] for number in part]
        self._assert_all(found, range(self.records))

    def test_a_failed_epoch_is_repeated_as_it_was(self, history: History) -> None:
        """Spark has logged its offsets, and asks for the same again in another process."""
        failed, again = (self._slices(run.epochs[FAILS_AT]) for run in (history.failed, history.rest))
        assert failed == again
        assert failed != [[]], "an epoch without records shows nothing"
        assert min(history.rest.epochs) == FAILS_AT, "epochs that were committed were read again"

    def test_a_replayed_epoch_gives_the_same_records(self, history: History) -> None:
        """A crash just before the end of an epoch: its offsets are logged, its commit is not."""
        last = max(history.rest.epochs)
        assert self._slices(history.replayed.epochs[last]) == self._slices(history.rest.epochs[last])
        assert history.replayed.numbers(without=last) == [], "records came that nobody fed"

    def test_a_restart_reads_what_came_later_and_only_that(self, history: History) -> None:
        self._assert_all(history.later.numbers(), range(self.records, self.records + LATER))

    def test_every_epoch_with_records_moves_the_offset(self, history: History) -> None:
        offsets = [history.offsets[epoch] for epoch in sorted(history.offsets)]
        given = [epoch for epoch, runs in {**history.failed.epochs, **history.rest.epochs}.items() if runs[-1]]
        assert len(set(offsets)) >= len(given)

    def test_the_lag_is_zero_when_all_is_read_and_positive_when_something_waits(self, history: History) -> None:
        """A source that cannot tell says None, always."""
        lags = [history.lags[epoch] for epoch in sorted(history.lags)]
        assert len({lag is None for lag in [*lags, history.grown_lag]}) == 1, "known at times only"
        if history.grown_lag is None:
            return
        assert lags[-1] is not None
        assert not lags[-1].waits, f"everything is read, but there is a lag of {lags[-1]}"
        assert all(lag is not None and lag.waits for lag in lags[:-1]), f"records wait, but the lags are {lags}"
        assert history.grown_lag.waits, "records came later, but there is no lag"
        counted = [lag.records for lag in lags if lag is not None and lag.records is not None]
        assert counted == sorted(counted, reverse=True), "the lag grew while records were read"
        assert all(count <= self.records for count in counted)

    def test_offsets_are_readable(self, history: History) -> None:
        source, offsets = history.source, history.offsets
        first, last = offsets[min(offsets)], offsets[max(offsets)]
        for offset in (first, last):
            words = source.describe_offset(offset)
            assert words
            assert "{" not in words, f"not for people: {words}"
            assert words == source.describe_offset(json.loads(offset)), "text and value must be described alike"
        assert source.describe_offset(first) != source.describe_offset(last)

    def _run(self, spark: SparkSession, source: Source, checkpoint: Path, fail_at: int | None = None) -> Seen:
        """Everything that is there, epoch by epoch, in a new query."""
        seen = Seen(self, fail_at)
        writer = source.load(spark).writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), f"the query does not end: {query.status}"
        except StreamingQueryException as ending:
            if fail_at is None or "fails on purpose" not in str(ending):
                raise
        finally:
            query.stop()
        return seen

    def _slices(self, runs: list[list[list[int]]]) -> list[list[list[int]]]:
        return runs if self.same_numbers else [sorted(slices) for slices in runs]

    def _assert_all(self, found: Sequence[int], expected: Sequence[int]) -> None:
        if self.keeps_order:
            assert list(found) == list(expected)
        else:
            assert sorted(found) == sorted(expected)


def _offsets(checkpoint: Path) -> dict[int, str]:
    """The one source's offset of every epoch, as Spark logged it."""
    logged = {int(path.name): path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()}
    return {epoch: path.read_text().splitlines()[2] for epoch, path in logged.items()}


def _forget_commit(checkpoint: Path, epoch: int) -> None:
    for name in (str(epoch), f".{epoch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
