"""Every kill point once, each in a fresh epoch: run K is killed at point K, and the next run takes over."""

import pytest

KILLS = {
    "driver": (
        "before-settle@1",
        "before-prepare@2",
        "after-fence@2",  # reached by the run that takes epoch 2 over: it fences the one that was just killed
        "before-decide@3",
        "inside-decide@4",
        "after-decide@5",
        "inside-commit@6",
        "after-commit@7",
        "before-return@8",
    ),
    "worker": ("before-begin@1", "after-write@2", "before-pre-commit@3", "after-pre-commit@4"),
}
AROUND_THE_DECISION = ("after-pre-commit@1", "after-decide@2", "inside-commit@3")
"""Prepared and not decided, decided and not committed, committed in part: to a sink the other points are like these."""
MATRIX = {"around-the-decision": AROUND_THE_DECISION, **KILLS}
IN_SHORT = ["around-the-decision", *(pytest.param(where, marks=pytest.mark.slow) for where in KILLS)]
"""For sinks beyond files and Kafka: in ``make test`` the points where a sink can make a difference, and all of them in
``make soak``."""
