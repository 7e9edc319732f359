"""The durable place of decisions, inside the job's checkpoint location."""

from tallystick.journal.audit import audit_lines, horizon, roll_up
from tallystick.journal.journal import JobIdentity, Journal, Note
from tallystick.journal.memory import MemoryStore
from tallystick.journal.store import Store

__all__ = ["JobIdentity", "Journal", "MemoryStore", "Note", "Store", "audit_lines", "horizon", "roll_up"]
