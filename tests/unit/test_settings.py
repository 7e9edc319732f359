"""Settings as people write them: what is meant is understood, what cannot be meant is refused at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tallystick as ts
from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.restart import Restarts, RestartStrategy


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

    @pytest.mark.parametrize("setting", ["interval", "commit_patience", "min_pause"])
    @pytest.mark.parametrize("value", ["soon", "5", 5, None])
    def test_its_durations_are_checked(self, setting: str, value: Any) -> None:
        settings: dict[str, Any] = {setting: value}
        with pytest.raises(ConfigError, match="not a duration"):
            ts.Checkpoint("/ck", **settings)

    @pytest.mark.parametrize("value", [0, 2, True, "1"])
    def test_epochs_are_never_concurrent(self, value: Any) -> None:
        with pytest.raises(ConfigError, match=r"max_concurrent is .* needed 1: an epoch begins when the one before"):
            ts.Checkpoint("/ck", max_concurrent=value)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"tolerable_failed": -1}, "tolerable_failed is -1, needed a whole number of at least 0"),
            ({"tolerable_failed": True}, "tolerable_failed is True"),
            ({"retention": 1}, "retention is 1, needed a whole number of at least 2"),
            ({"on_cancel": "burn"}, "on_cancel is 'burn', needed 'keep' or 'delete'"),
        ],
    )
    def test_its_counts_and_choices_are_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ts.Checkpoint("/ck", **settings)

    def test_an_unknown_setting_is_named(self) -> None:
        settings: dict[str, Any] = {"intervall": "1s"}
        with pytest.raises(TypeError, match="'intervall'"):
            ts.Checkpoint("/ck", **settings)


class TestRestart:
    def pauses(self, strategy: RestartStrategy, at_s: Sequence[float]) -> list[float | None]:
        """What a strategy says to failures at these times, with no epoch that succeeds in between."""
        times = iter(at_s)
        restarts = Restarts(strategy, lambda: next(times))
        return [restarts.failed() for _ in at_s]

    def test_a_fixed_delay_gives_up_after_its_attempts(self) -> None:
        assert self.pauses(ts.FixedDelay(attempts=2, delay="500ms"), range(4)) == [0.5, 0.5, None, None]

    def test_an_epoch_that_succeeds_sets_a_fixed_delay_back(self) -> None:
        restarts = Restarts(ts.FixedDelay(attempts=1, delay="1s"))
        assert restarts.failed() == 1
        restarts.succeeded()
        assert [restarts.failed(), restarts.failed()] == [1, None]

    def test_no_restart_gives_up_at_once(self) -> None:
        assert self.pauses(ts.NoRestart(), [0]) == [None]

    def test_an_exponential_delay_grows_to_its_longest(self) -> None:
        strategy = ts.ExponentialDelay("1s", "10s", factor=3, jitter=0)
        assert self.pauses(strategy, range(5)) == [1, 3, 9, 10, 10]

    def test_an_exponential_delay_begins_anew_after_a_time_without_failure(self) -> None:
        strategy = ts.ExponentialDelay("1s", "10s", jitter=0, reset="60s")
        # the pause itself is no time in which the job was well: 62 s with a pause of 2 s are 60 s
        assert self.pauses(strategy, [0, 1, 63, 125, 190]) == [1, 2, 4, 8, 10]
        assert self.pauses(strategy, [0, 1, 64, 65]) == [1, 2, 1, 2]

    def test_an_exponential_delay_can_give_up(self) -> None:
        strategy = ts.ExponentialDelay("1s", "10s", jitter=0, reset="60s", attempts=2)
        assert self.pauses(strategy, [0, 1, 2, 1000, 1001, 1002]) == [1, 2, None, 1, 2, None]

    def test_jitter_spreads_the_pauses_within_its_bounds(self) -> None:
        strategy = ts.ExponentialDelay("100s", "100s", jitter=0.2)
        found = [pause_s for _ in range(200) for pause_s in self.pauses(strategy, [0]) if pause_s is not None]
        assert len(found) == 200
        assert 80 <= min(found) < 90 < 110 < max(found) <= 120

    def test_a_failure_rate_counts_what_is_recent(self) -> None:
        strategy = ts.FailureRate(failures=2, within="10s", delay="1s")
        assert self.pauses(strategy, [0, 1, 10.5, 11.5, 12]) == [1, 1, 1, 1, None]

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

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"initial": "0s"}, "initial is '0s'"),
            ({"initial": "10s", "longest": "5s"}, "no longer than the longest"),
            ({"factor": 0.5}, "factor is 0.5, needed a number from 1"),
            ({"jitter": 2}, "jitter is 2, needed a number from 0 to 1"),
            ({"jitter": "some"}, "jitter is 'some'"),
            ({"reset": "later"}, "not a duration"),
            ({"attempts": 0}, "attempts is 0, needed a whole number above 0"),
        ],
    )
    def test_an_exponential_delay_is_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ts.ExponentialDelay(**settings)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"failures": 0}, "failures is 0"),
            ({"within": "0s"}, "within is '0s', needed a span"),
            ({"delay": 5}, "not a duration"),
        ],
    )
    def test_a_failure_rate_is_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ts.FailureRate(**settings)
