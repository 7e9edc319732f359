"""One Spark session for all tests: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tallystick.spark.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("tallystick tests", "local[2]", {"spark.sql.shuffle.partitions": "2"}, fast_start=True)
    yield made
    made.stop()
