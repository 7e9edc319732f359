"""Ports for servers on this machine."""

from __future__ import annotations

import random

from tallystick.servers.ports import free_ports


def test_processes_that_were_seeded_alike_get_different_ports() -> None:
    """As those of a parallel test run are, which start their servers at the same moment."""
    found = []
    for _ in range(2):
        random.seed(20261118)
        found.append(free_ports(5))
    assert found[0] != found[1]
    assert all(len(set(ports)) == 5 for ports in found)
