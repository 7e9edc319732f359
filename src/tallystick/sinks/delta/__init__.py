"""Delta tables: Parquet files put beside the table by executors, added to its log by the driver in one commit."""

from tallystick.sinks.delta.sink import Delta

__all__ = ["Delta"]
