"""Judges: pure functions over a history. Each looks for one kind of wrong, in one output, and answers in three ways.

======== ==================================================================================================
lost     a row that should be there is not
repeated a row is there more often than it should be
phantom  a row that nobody sent
dirty    a reader of committed rows saw a row before it was decided, or one that is gone again
torn     an epoch is over, and only a part of it is visible
reordered the rows of a key came in another order than without faults
stuck    an epoch is over, and readers waited for it longer than a limit
state    a key's running result is another one than without faults: it skips, repeats or goes astray
======== ==================================================================================================

*unknown* is no *valid*: it says what the history lacks. A check that makes no sense for an output (order in a folder,
state in a job without) is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tallystick.prover.checkers.answer import Answer, Verdict
from tallystick.prover.checkers.counts import lost, phantom, repeated
from tallystick.prover.checkers.order import reordered, state
from tallystick.prover.checkers.sight import dirty, stuck, torn
from tallystick.prover.history import History

__all__ = ["CHECKERS", "Answer", "Verdict", "check", "dirty", "lost", "phantom", "reordered", "repeated", "state"]
__all__ += ["stuck", "torn"]

Checker = Callable[[History, str], Answer | None]

CHECKERS: Mapping[str, Checker] = {
    "lost": lost,
    "repeated": repeated,
    "phantom": phantom,
    "dirty": dirty,
    "torn": torn,
    "reordered": reordered,
    "stuck": stuck,
    "state": state,
}


def check(history: History) -> dict[str, dict[str, Answer]]:
    """The answers of all checkers about all outputs: by output, then by checker; without those that make no sense."""
    found: dict[str, dict[str, Answer]] = {}
    for sink in history.expected:
        answers = {name: checker(history, sink) for name, checker in CHECKERS.items()}
        found[sink] = {name: answer for name, answer in answers.items() if answer is not None}
    return found
