"""The texts of rows as Spark prints them. That a real Spark prints them so is shown by every epoch of tests/spark."""

from __future__ import annotations

import pytest

from tallystick.errors import EpochError
from tallystick.spark.collected import texts


def printed(text: str) -> str:
    data = text.encode()
    words = [0, (16 << 32) | len(data)]
    words += [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return "[" + ",".join(f"{word:x}" for word in words) + "]"


@pytest.mark.parametrize("found", [[], [""], ["a"], ["12345678"], ["1234567890"], ["Grüße, 世界", '{"a": [1, 2]}', ""]])
def test_texts_of_any_length_come_back(found: list[str]) -> None:
    assert texts("[" + ", ".join(map(printed, found)) + "]") == found


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("1,1000000000", id="null"),
        pytest.param("0,1000000005", id="cut off"),
        pytest.param("0,1800000001,61", id="two columns"),
        pytest.param("0,1000000001,61,62", id="too long"),
        pytest.param("hello", id="other words"),
        pytest.param("0,1000000001,ff", id="no text"),
        pytest.param("0", id="no place"),
    ],
)
def test_rows_that_are_laid_out_otherwise_are_refused(row: str) -> None:
    with pytest.raises(EpochError, match="not laid out as a text"):
        texts(f"[[{row}]]")
