"""The classic: lines of text -> words -> how often each was seen, kept per word, exactly once.

    tallystick run examples/stateful_word_count.py --available-now

Lines are files in ``WORD_COUNT/lines`` (default: a folder ``word-count`` here); counts go to ``counts`` beside it.
Kill it whenever you like and run it again: each count appears exactly once.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

import tallystick as ts

FOLDER = Path(os.environ.get("WORD_COUNT", "word-count"))


class Count(ts.state.Keyed):
    """How often a word was seen so far."""

    output = "word string, n long"
    seen = ts.state.Value("long")

    def on_rows(self, key: tuple[str], rows: Iterator[Row], now: ts.state.Now) -> Iterator[tuple[str, int]]:
        self.seen.set((self.seen.get() or 0) + sum(1 for _ in rows))
        yield key[0], self.seen.get()


def words(lines: DataFrame) -> DataFrame:
    split = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word")).where("word != ''")
    return ts.state.keyed(split, by="word", state=Count())


job = ts.Job(
    "word-count",
    source=ts.sources.Files(FOLDER / "lines", format="text", max_files_per_epoch=1),
    steps=words,
    output_mode="update",
    sink=ts.sinks.Files(FOLDER / "counts", format="json"),
    checkpoint=ts.Checkpoint(FOLDER / "checkpoint", interval="1s"),
    restart=ts.ExponentialDelay("1s", "1m"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
