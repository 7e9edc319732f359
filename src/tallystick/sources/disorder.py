"""Rows out of their order, as real streams have them, for tests of windows and watermarks. Pure.

The order depends on the settings alone, so that a replay has the same: a row is moved back by a number that is made
from its own offset and the seed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallystick.errors import ConfigError


@dataclass(frozen=True)
class Disorder:
    """How a collection's rows are mixed up.

    within      rows come up to so many places after their own
    late_share  this share of them, between 0 and 1, comes late
    late_by     and those come so many places later
    seed        another one gives another order
    """

    within: int = 0
    late_share: float = 0.0
    late_by: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("within", self.within), ("late_by", self.late_by), ("seed", self.seed)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"disorder: {name} is {value!r}, needed a whole number, 0 or more")
        if not 0 <= self.late_share <= 1:
            raise ConfigError(f"disorder: late_share is {self.late_share!r}, needed a share between 0 and 1")
        if bool(self.late_share) != bool(self.late_by):
            raise ConfigError("disorder: late_share and late_by go together: found only one of them")

    def order(self, length: int) -> npt.NDArray[np.int64]:
        """Which row comes at each offset: every row once."""
        # the bytes of a hash are alike on every machine and version, which a random generator does not promise
        noise = np.frombuffer(
            b"".join(hashlib.blake2b(b"%d:%d" % (self.seed, row), digest_size=16).digest() for row in range(length)),
            dtype="<u8",
        ).reshape(length, 2)
        places = np.arange(length, dtype=np.int64) + (noise[:, 0] % np.uint64(self.within + 1)).astype(np.int64)
        late = noise[:, 1] / float(1 << 64) < self.late_share
        places[late] += self.late_by
        return np.argsort(places, kind="stable").astype(np.int64)
