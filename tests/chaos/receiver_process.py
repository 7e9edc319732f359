"""A receiver in a process of its own, to be killed: ``receiver_process.py SPEC [SECONDS]``.

With SECONDS it ends by itself when it has appended nothing for so long.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tallystick.receiver import LogReader
from tallystick.receiver.process import ReceiverSpec
from tallystick.receiver.run import run_receiver


def main(text: str, idle_s: float) -> None:
    spec = ReceiverSpec.from_json(text)
    reader = LogReader(Path(spec.folder))
    seen, since_s = -1, time.monotonic()

    def wanted() -> bool:
        nonlocal seen, since_s
        durable = reader.durable
        if durable != seen:
            seen, since_s = durable, time.monotonic()
        return time.monotonic() - since_s < idle_s

    run_receiver(spec, wanted=wanted)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
