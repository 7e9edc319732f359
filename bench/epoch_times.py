"""How long epochs take on the driver: seconds inside ``foreachBatch``, one after the other."""

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

EpochFunction = Callable[[DataFrame, int], None]


def timed(epoch: EpochFunction, times: list[float]) -> EpochFunction:
    """What does the same and adds the seconds that it took."""

    def measured(rows: DataFrame, number: int) -> None:
        started = time.perf_counter()
        epoch(rows, number)
        times.append(time.perf_counter() - started)

    return measured


def start_timed(writer: Any, times: list[float]) -> StreamingQuery:
    """Start a query of ours with its epochs measured."""
    original = type(writer)._start_query

    def start(coordinator: Any) -> Any:
        coordinator.run_epoch = timed(coordinator.run_epoch, times)
        return original(writer, coordinator)

    writer._start_query = start
    query: StreamingQuery = writer.start()
    return query


def stop_after(query: StreamingQuery, times: list[float], epochs: int) -> None:
    while len(times) < epochs and query.isActive:
        time.sleep(0.02)
    query.stop()
