"""Rows out of order: every row once, the same order every time, as far away as declared."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tallystick.errors import ConfigError
from tallystick.sources import Collection, Disorder
from tallystick.sources.offset_reader import OffsetReader

ROWS = [{"id": number} for number in range(200)]


def ids(source: Collection) -> list[int]:
    reader = OffsetReader(source._rows(source.schema))  # type: ignore[arg-type]  # dictionaries have a schema
    parts = reader.partitions({"offset": 0}, {"offset": source.length})
    return [number for part in parts for batch in reader.read(part) for number in batch.column("id").to_pylist()]


@given(st.integers(0, 300), st.integers(0, 50), st.integers(0, 5))
def test_every_row_comes_once_and_never_too_far_from_its_place(length: int, within: int, seed: int) -> None:
    order = Disorder(within=within, seed=seed).order(length).tolist()
    assert sorted(order) == list(range(length))
    assert all(abs(place - row) <= within for place, row in enumerate(order))


def test_the_order_is_the_same_every_time_and_another_seed_gives_another() -> None:
    mixed = Collection(ROWS, disorder=Disorder(within=10))
    assert ids(mixed) == ids(Collection(ROWS, disorder=Disorder(within=10))) != list(range(200))
    assert ids(mixed) != ids(Collection(ROWS, disorder=Disorder(within=10, seed=1)))


def test_late_rows_come_that_much_later() -> None:
    order = Disorder(late_share=0.1, late_by=50).order(2000).tolist()
    late = [row for place, row in enumerate(order) if place - row > 30]
    assert 100 <= len(late) <= 300
    on_time = [row for row in order if row not in late and row < 1900]
    assert on_time == sorted(on_time), "rows that are not late keep their order"


def test_a_function_is_mixed_up_as_a_list_is() -> None:
    listed = Collection(ROWS, disorder=Disorder(within=7, seed=3))
    made = Collection(
        lambda offset: {"id": offset}, schema=listed.schema, length=200, disorder=Disorder(within=7, seed=3)
    )
    assert ids(made) == ids(listed)


def test_nothing_is_due_before_the_delay_is_over() -> None:
    source = Collection(ROWS, delay="200ms")
    reader = OffsetReader(source._rows(source.schema))  # type: ignore[arg-type]
    began = time.monotonic()
    while (found := reader.latestOffset({"offset": 0}, ReadAllAvailable())) == {"offset": 0}:
        assert time.monotonic() - began < 10
        time.sleep(0.01)
    assert time.monotonic() - began >= 0.2
    assert found == {"offset": 200}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"within": -1}, "within is -1"),
        ({"late_share": 2.0, "late_by": 1}, "late_share is 2.0"),
        ({"late_share": 0.5}, "go together"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Disorder(**settings)  # type: ignore[arg-type]
