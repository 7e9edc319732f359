"""Settings as people write them, turned into numbers; whatever cannot be meant is a `ConfigError`."""

from __future__ import annotations

import re

from tallystick.errors import ConfigError

_UNITS_S = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}


def duration_s(text: str) -> float:
    """Seconds of a duration such as ``"500ms"``, ``"10 seconds"``, ``"5m"`` or ``"1h"``.

    A bare number is refused: 5 could be meant as seconds, as minutes or as milliseconds.
    """
    needed = "needed a whole number and a unit, such as '500ms', '10 seconds', '5m' or '1h'"
    if not isinstance(text, str):
        raise ConfigError(f"not a duration: {text!r} of type {type(text).__name__}, {needed}")
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]+)\s*", text.lower())
    if match is None:
        raise ConfigError(f"not a duration: {text!r}, {needed}")
    number, unit = match.groups()
    singular = unit.removesuffix("s") if len(unit) > 3 else unit  # '5ss' is a slip, not a plural
    scale = _UNITS_S.get(unit) or _UNITS_S.get(singular)
    if scale is None:
        raise ConfigError(f"not a duration: {text!r} has the unknown unit {unit!r}, {needed}")
    return int(number) * scale
