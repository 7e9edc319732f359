"""``ts.state``: state per key, per operator, and broadcast to every task."""

from tallystick.spark.broadcast import Broadcast
from tallystick.spark.operator_state import Operator, operator
from tallystick.spark.stateful import Keyed, List, Map, Now, Timers, Value, keyed

__all__ = ["Broadcast", "Keyed", "List", "Map", "Now", "Operator", "Timers", "Value", "keyed", "operator"]
