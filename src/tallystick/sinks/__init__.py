"""Where rows go. `base.py` is the contract, `memory.py` the smallest sink that keeps it."""

from tallystick.sinks.base import (
    IdempotentSink,
    OpenTransaction,
    PlainSink,
    Sink,
    SliceContext,
    TransactionalSink,
    TransactionState,
)
from tallystick.sinks.files import Files
from tallystick.sinks.memory import Memory
from tallystick.sinks.stdout import Stdout

__all__ = [
    "Files",
    "IdempotentSink",
    "Memory",
    "OpenTransaction",
    "PlainSink",
    "Sink",
    "SliceContext",
    "Stdout",
    "TransactionState",
    "TransactionalSink",
]
