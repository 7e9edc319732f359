"""From a declared job to its guarantee, with the reason for every loss."""

from tallystick.planner.derive import Explanation, Finding, Node, derive

__all__ = ["Explanation", "Finding", "Node", "derive"]
