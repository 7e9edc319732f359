"""One run of a receiver, from its settings to its end: in a process of its own, or in a test's."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tallystick.receiver.inlet import Inlet
from tallystick.receiver.inlets import inlet_of
from tallystick.receiver.log import ReceiverLog
from tallystick.receiver.process import ReceiverSpec, driver_lives
from tallystick.receiver.pump import Pump
from tallystick.receiver.status import Status


def run_receiver(spec: ReceiverSpec, inlet: Inlet | None = None, wanted: Callable[[], bool] | None = None) -> None:
    """Until SIGTERM, SIGINT, or until its driver has been gone for too long. Raises what it failed of."""
    folder = Path(spec.folder)
    inlet = inlet if inlet is not None else inlet_of(spec.inlet)
    dead_settings = replace(spec.log, window=0)
    with ReceiverLog(folder, spec.log) as log, ReceiverLog(folder / "dead-letters", dead_settings) as dead_letters:
        pump = Pump(inlet, log, dead_letters, Status(folder), wanted or _wanted(spec), spec.stop_at_bad)

        def stop(number: int, frame: FrameType | None) -> None:
            pump.stopping = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            pump.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _wanted(spec: ReceiverSpec) -> Callable[[], bool]:
    """Whether the driver lives, or has not been dead for too long."""
    outlives_s, folder = spec.outlives_s, Path(spec.folder)
    if outlives_s is None:
        return lambda: True
    seen_s = time.monotonic()

    def wanted() -> bool:
        nonlocal seen_s
        if driver_lives(folder):
            seen_s = time.monotonic()
        return time.monotonic() - seen_s <= outlives_s

    return wanted
