"""A shipped test kit: `SinkContract` is the suite that every sink of this package passes, for your own sinks too."""

import pytest

pytest.register_assert_rewrite("tallystick.testing.sinks")

from tallystick.testing.sinks import SinkContract  # noqa: E402 - the rewriting must come first

__all__ = ["SinkContract"]
