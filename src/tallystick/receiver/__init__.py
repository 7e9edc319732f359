"""The receiver log: what cannot be replayed is made durable the moment it arrives, and read by offset from then on.

Read `format.py` (what is on disk), `log.py` (who writes it, and why nothing acknowledged is lost), `pump.py` (receive,
append, acknowledge) in this order. `docs/decisions/0018-receiver-log.md` has the reasons.
"""

from tallystick.receiver.format import Record
from tallystick.receiver.inlet import Inlet
from tallystick.receiver.log import LogSettings, ReceiverLog
from tallystick.receiver.reading import LogReader

__all__ = ["Inlet", "LogReader", "LogSettings", "ReceiverLog", "Record"]
