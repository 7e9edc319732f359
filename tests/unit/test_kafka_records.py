"""Rows that no Kafka record can be: refused with words, before anything is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tallystick.errors import RowRefusedError
from tallystick.sinks.kafka.producer import Records, named

VALUES = pa.array([b"a", b"b"], pa.binary())


def test_a_negative_partition_is_no_partition() -> None:
    with pytest.raises(RowRefusedError, match="topic pv names the partition -1: needed 0 or more, or null"):
        Records("pv", VALUES, partition=pa.array([0, -1], pa.int32()))


@pytest.mark.parametrize("partitions", [[0, 7], [None, 0], [None, None]])
def test_partitions_that_can_be(partitions: list[int | None]) -> None:
    assert len(Records("pv", VALUES, partition=pa.array(partitions, pa.int32()))) == 2


@pytest.mark.parametrize("header", [{"key": None, "value": b"x"}, None])
def test_a_header_needs_a_name(header: Any) -> None:
    with pytest.raises(RowRefusedError, match="a record for pv has a header without a name"):
        named("pv", [{"key": "fine", "value": b"x"}, header])


def test_headers_keep_their_order_and_may_have_no_value() -> None:
    pairs: list[Any] = [{"key": "b", "value": None}, {"key": "a", "value": b"x"}, {"key": "b", "value": b""}]
    assert named("pv", pairs) == [("b", None), ("a", b"x"), ("b", b"")]
    assert named("pv", None) == []
