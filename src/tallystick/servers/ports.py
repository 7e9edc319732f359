"""Ports of 127.0.0.1 that nobody listens on."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack

from tallystick.errors import SetupError

LOOPBACK = "127.0.0.1"
# below the range from which systems take the ports of outgoing connections, which would come and go in between
_RANGE = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """Different ports, free just now. Random, so that servers started at the same time do not meet.

    By the system's randomness: processes whose generator was seeded alike, as test runners do, would all meet.
    """
    found: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(_RANGE, 500):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise SetupError(f"no {count} free ports found on {LOOPBACK} between {_RANGE.start} and {_RANGE.stop}")
