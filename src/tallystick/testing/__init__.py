"""A shipped test kit: the suites that every sink and every source of this package passes, for your own too."""

import pytest

pytest.register_assert_rewrite("tallystick.testing.sinks", "tallystick.testing.sources")

from tallystick.testing.sinks import SinkContract  # noqa: E402 - the rewriting must come first
from tallystick.testing.sources import SourceContract  # noqa: E402

__all__ = ["SinkContract", "SourceContract"]
