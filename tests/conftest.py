"""One Spark session for all tests: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tallystick.spark.session import session

# A busy machine is no defect: examples are bounded by their number, not by their time.
settings.register_profile("tallystick", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tallystick")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("tallystick tests", "local[2]", {"spark.sql.shuffle.partitions": "2"}, fast_start=True)
    yield made
    made.stop()
