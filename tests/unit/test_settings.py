"""Settings as people write them: what is meant is understood, what cannot be meant is refused at once."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tallystick as ts
from tallystick.config import duration_s
from tallystick.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("500ms", 0.5),
        ("1 millisecond", 0.001),
        ("10 seconds", 10),
        ("10sec", 10),
        ("2 secs", 2),
        ("5m", 300),
        ("5 min", 300),
        ("5 Minutes", 300),
        ("1h", 3600),
        ("2 hours", 7200),
        ("1d", 86400),
        ("3 days", 259200),
        ("  7 s ", 7),
        ("007s", 7),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@given(st.integers(0, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_durations_grow_with_their_number(number: int, unit: str) -> None:
    assert duration_s(f"{number}{unit}") == pytest.approx(number * duration_s(f"1{unit}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "1e3s",
        "5 fortnights",
        "1h30m",
        "5ss",
        "5mss",
        "5hs",
        "٣s",
        "1s;",
        "5\x00s",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"not a duration.*needed a whole number and a unit, such as '500ms'"
    ) as caught:
        duration_s(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [5, 5.0, None, b"5s", ["5s"], True])
def test_a_duration_is_a_text(value: Any) -> None:
    with pytest.raises(ConfigError, match="needed a whole number and a unit") as caught:
        duration_s(value)
    assert type(value).__name__ in str(caught.value)


class TestCheckpoint:
    def test_defaults(self) -> None:
        checkpoint = ts.Checkpoint("/ck")
        assert (checkpoint.uri, checkpoint.interval_s, checkpoint.commit_patience_s) == ("/ck", 1.0, 300.0)

    @pytest.mark.parametrize("location", ["/ck/", Path("/ck"), PurePosixPath("/ck"), "/ck//"])
    def test_the_location_without_its_last_slash(self, location: Any) -> None:
        assert ts.Checkpoint(location).uri == "/ck"

    @pytest.mark.parametrize("location", ["hdfs://host:8020/ck", "s3a://bucket/ck", "file:///ck", "relative/ck"])
    def test_a_uri_stays_as_it_is(self, location: str) -> None:
        assert ts.Checkpoint(location).uri == location

    @pytest.mark.parametrize("location", ["", "  ", "/", "//"])
    def test_a_location_of_its_own_is_needed(self, location: str) -> None:
        with pytest.raises(ConfigError, match=f"needs a location of its own, found {re.escape(repr(location))}"):
            ts.Checkpoint(location)

    @pytest.mark.parametrize("location", [None, 5, b"/ck", ["/ck"]])
    def test_a_location_is_a_path_or_uri(self, location: Any) -> None:
        with pytest.raises(ConfigError, match=f"path or URI, found {type(location).__name__}"):
            ts.Checkpoint(location)

    def test_a_path_of_bytes_is_refused(self) -> None:
        class Bytes:
            def __fspath__(self) -> bytes:
                return b"/ck"

        wrong: Any = Bytes()
        with pytest.raises(ConfigError, match="as text, found b'/ck'"):
            ts.Checkpoint(wrong)

    @pytest.mark.parametrize("setting", ["interval", "commit_patience"])
    @pytest.mark.parametrize("value", ["soon", "5", 5, None])
    def test_its_durations_are_checked(self, setting: str, value: Any) -> None:
        settings: dict[str, Any] = {setting: value}
        with pytest.raises(ConfigError, match="not a duration"):
            ts.Checkpoint("/ck", **settings)

    def test_an_unknown_setting_is_named(self) -> None:
        settings: dict[str, Any] = {"intervall": "1s"}
        with pytest.raises(TypeError, match="'intervall'"):
            ts.Checkpoint("/ck", **settings)


class TestRestart:
    def test_a_fixed_delay_gives_up_after_its_attempts(self) -> None:
        strategy = ts.FixedDelay(attempts=2, delay="500ms")
        assert [strategy.pause_s(failures) for failures in (1, 2, 3, 4)] == [0.5, 0.5, None, None]

    def test_no_restart_gives_up_at_once(self) -> None:
        assert ts.NoRestart().pause_s(1) is None

    @pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3", None])
    def test_attempts_are_a_whole_number_above_zero(self, attempts: Any) -> None:
        with pytest.raises(
            ConfigError, match=f"attempts is {re.escape(repr(attempts))}, needed a whole number above 0"
        ):
            ts.FixedDelay(attempts=attempts)

    @pytest.mark.parametrize("delay", ["later", 10, None])
    def test_its_delay_is_checked(self, delay: Any) -> None:
        with pytest.raises(ConfigError, match="not a duration"):
            ts.FixedDelay(delay=delay)
