"""``python -m tallystick.receiver``, with a `ReceiverSpec` as JSON on standard input. Started by a source, or by
``tallystick receiver run``, which has the settings from a job's file."""

from __future__ import annotations

import logging
import sys

from tallystick.errors import TallystickError
from tallystick.receiver.process import ReceiverSpec
from tallystick.receiver.run import run_receiver


def main() -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs what it also raises
    try:
        run_receiver(ReceiverSpec.from_json(sys.stdin.read()))
    except TallystickError as failure:
        print(failure, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
