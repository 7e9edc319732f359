"""The epoch: settle, prepare, decide, commit, return. Read this file first; everything else serves it.

Each delivery mode is one generator. It yields commands (`commands.py`) and is sent their answers; it never
touches the world itself. Why it is right, in numbered steps that the tests cite:

1.  *One decision per attempt.* An attempt is ``(epoch, generation)`` and the journal takes one record for it, by
    an atomic create. Whoever comes second reads the first one's decision and obeys it.
2.  *The commit point.* Nothing is published before COMMIT stands in the journal with the votes of all slices.
    Before it every failure rolls back; after it there is only forward.
3.  *Fencing.* A new driver has a higher generation. Before it prepares epoch N it puts ABORT for every rival at N.
    A rival that wakes up late finds ABORT where it wanted COMMIT, and stops for good. If the put comes second, the
    rival had decided COMMIT: then its epoch is recovered, not repeated, and the rival is fenced at N+1. So that
    nobody gets past an ABORT unseen, a driver leaves no epoch without a COMMIT of its own: one that wrote nothing,
    because the epoch was decided before, puts a COMMIT that replaces nothing. And a generation is claimed together
    with its first epoch, because an ABORT below that is never met (`Recalled`).
4.  *Names.* A transaction's name holds its attempt, so that preparing again never touches what was decided.
5.  *Recovery is forward only.* For a decided epoch the votes in force are those of the first COMMIT, each slice
    replaced by the newest later COMMIT that rewrites it. They are committed again; commits may be repeated.
6.  *Expired is not lost.* ``expired`` means surely rolled back. Exactly those slices are computed again and
    written under a new attempt, if their fingerprints are what was decided; the new attempt is decided like any
    other. If they differ, the driver stops and a person chooses.
7.  *Unknown is not failed.* An unsettled commit is asked for again until it is confirmed, expired or refused.
8.  *Orphans.* Transactions of earlier generations can be open at N only if there is an earlier generation; each has a
    decision at N once it is fenced. So an epoch without earlier decisions has nothing to roll back. What tasks of this
    generation left behind (a retried or a speculative one) is garbage when its epoch is settled, and goes then.
9.  *Settled.* Spark starts epoch N only when N-1 is in its commit log, so at N whatever a sink still holds for
    N-1 or earlier is garbage.
10. *Refused once, refused again.* Which rows a server refuses is not for the replay to find out: the decision says it,
    and a decided epoch is computed again with the same rows left out (`docs/decisions/0013-dead-letters.md`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tallystick.errors import (
    CommitRefusedError,
    ConflictError,
    ExpiredError,
    FencedError,
    PrepareError,
)
from tallystick.protocol.commands import (
    EVERYTHING,
    NOTHING,
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Note,
    Prepare,
    Put,
    Recall,
    Recalled,
    Settled,
    Steps,
    Wait,
)
from tallystick.protocol.settle import differences, in_force, still_right, to_rewrite
from tallystick.records import Attempt, Decision, Mode, Outcome, Parts, Record, Resolution, Vote


def exactly_once(me: Attempt) -> Steps:
    """Neither lost nor repeated, whatever fails and whenever."""
    past = yield from _settle_rivals(me)
    decided = in_force(past.records)
    if past.records:
        yield AbortOrphans(me, keep=decided or ())
    if decided is None:
        votes = yield from _prepare(me, EVERYTHING)
        yield from _decide(me, votes)
        yield from _commit(votes)
        return Finished("written", votes)
    missing = yield from _recover(decided)
    if not missing or past.resolution is Resolution.ABANDON:
        return (yield from _verify(me, decided, missing))
    return (yield from _rewrite(me, decided, missing, past.resolution))


def at_least_once(me: Attempt) -> Steps:
    """Never lost, may repeat: an unfinished epoch is simply done again, whatever was decided about it."""
    past = yield from _settle_rivals(me)
    if past.records:
        yield AbortOrphans(me)
    votes = yield from _prepare(me, EVERYTHING)
    yield from _decide(me, votes, Mode.AT_LEAST_ONCE)
    yield from _commit(votes)
    return Finished("written", votes)


def at_most_once(me: Attempt) -> Steps:
    """Never repeated, may lose: the epoch counts as given before anything is written."""
    past = yield from _settle_rivals(me)
    if past.records:
        yield AbortOrphans(me)
    if in_force(past.records) is not None:
        votes = yield Prepare(me, NOTHING)
        yield from _decide(me, (), Mode.AT_MOST_ONCE, replaces=NOTHING)
        yield Note(me, "skipped", {"votes": [vote.to_json() for vote in votes]})
        return Finished("skipped", votes)
    yield from _decide(me, (), Mode.AT_MOST_ONCE)
    votes = yield Prepare(me, EVERYTHING)
    lost = yield from _commit_until_known(votes, recovering=False)
    kept = [vote.to_json() for vote in votes if vote not in lost]
    yield Note(me, "delivered", {"votes": kept, "lost": [vote.to_json() for vote in lost]})
    return Finished("written", votes)


MODES = {
    Mode.EXACTLY_ONCE: exactly_once,
    Mode.AT_LEAST_ONCE: at_least_once,
    Mode.AT_MOST_ONCE: at_most_once,
}


def _settle_rivals(me: Attempt) -> Generator[Command, Any, Recalled]:
    """Step 1 of the epoch (essay 3, 9): after it, every earlier generation has a decision at this epoch."""
    if me.epoch > 0:
        yield Settled(me.epoch - 1)
    past: Recalled = yield Recall(me)
    records = {record.attempt.generation: record for record in past.records}
    for rival in past.rivals:
        if rival not in records:
            abort = Record(Attempt(me.epoch, rival), Decision.ABORT, reason=f"fenced by generation {me.generation}")
            records[rival] = yield Put(abort)
    if me.generation in records:
        raise FencedError(
            f"epoch {me.epoch} already has a decision for generation {me.generation}: another driver has taken "
            "over, this one stops. nothing was written",
            epoch=me.epoch,
        )
    ordered = tuple(records[generation] for generation in sorted(records))
    return Recalled(ordered, (), past.resolution)


def _prepare(
    me: Attempt, write: Parts | None, decided: tuple[Vote, ...] = ()
) -> Generator[Command, Any, tuple[Vote, ...]]:
    """Step 2: all slices vote, or the attempt is aborted (essay 2)."""
    try:
        votes: tuple[Vote, ...] = yield Prepare(me, write, decided)
    except PrepareError as failure:
        yield from _abort(me, str(failure))
        raise
    return votes


def _abort(me: Attempt, reason: str) -> Generator[Command, Any, None]:
    yield Put(Record(me, Decision.ABORT, reason=reason))
    yield AbortOrphans(me)


def _decide(
    me: Attempt, votes: tuple[Vote, ...], mode: Mode = Mode.EXACTLY_ONCE, replaces: Parts | None = None
) -> Generator[Command, Any, None]:
    """Step 3: the commit point (essay 1, 2)."""
    standing: Record = yield Put(Record(me, Decision.COMMIT, mode, votes, replaces))
    if standing.decision is Decision.ABORT:
        yield AbortOrphans(me)
        raise FencedError(
            f"epoch {me.epoch} was aborted while generation {me.generation} prepared it ({standing.reason}): "
            "another driver has taken over, this one stops. nothing was published",
            epoch=me.epoch,
        )


def _commit(votes: tuple[Vote, ...]) -> Generator[Command, Any, None]:
    """Step 4: publish, in order, until each one is confirmed (essay 7)."""
    expired = yield from _commit_until_known(votes, recovering=False)
    if expired:
        raise ExpiredError(
            f"{_name(expired)} expired after the decision: the server rolled them back. nothing is lost: start the "
            "job again and exactly these slices are written again",
            slices=[vote.key for vote in expired],
        )


def _recover(decided: tuple[Vote, ...]) -> Generator[Command, Any, tuple[Vote, ...]]:
    """Finish an earlier attempt's commit; returns the votes whose transactions expired (essay 5, 6)."""
    return (yield from _commit_until_known(decided, recovering=True))


def _commit_until_known(votes: tuple[Vote, ...], recovering: bool) -> Generator[Command, Any, tuple[Vote, ...]]:
    pending = tuple(vote for vote in votes if vote.committable is not None)
    expired: list[Vote] = []
    tries = 0
    while pending:
        outcomes: tuple[Outcome, ...] = yield Commit(pending, recovering or tries > 0)
        answered = tuple(zip(pending, outcomes, strict=True))
        refused = tuple(vote for vote, outcome in answered if outcome is Outcome.REFUSED)
        if refused:
            raise CommitRefusedError(
                f"{_name(refused)} is decided but its server refuses the commit. nothing was dropped: remove the "
                "cause and start the job again, which goes on committing",
                slices=[vote.key for vote in refused],
            )
        expired += [vote for vote, outcome in answered if outcome is Outcome.EXPIRED]
        pending = tuple(vote for vote, outcome in answered if outcome.unsettled)
        if pending:
            tries += 1
            yield Wait(tries, pending)
    return tuple(expired)


def _verify(me: Attempt, decided: tuple[Vote, ...], missing: tuple[Vote, ...]) -> Generator[Command, Any, Finished]:
    """Everything is published. Spark's state must still advance: compute, compare, write nowhere (essay 3)."""
    votes: tuple[Vote, ...] = yield Prepare(me, NOTHING, decided)
    yield from _decide(me, (), replaces=NOTHING)
    if missing:
        yield Note(me, "abandoned", {"votes": [vote.to_json() for vote in missing]})
    changed = differences(decided, votes)
    if changed:
        yield Note(me, "not deterministic", {"sinks": changed})
    return Finished("verified", votes)


def _rewrite(
    me: Attempt, decided: tuple[Vote, ...], missing: tuple[Vote, ...], resolution: Resolution | None
) -> Generator[Command, Any, Finished]:
    """Some transactions expired after their decision: write exactly those slices again (essay 6)."""
    write = to_rewrite(decided, missing)
    votes = yield from _prepare(me, write, decided)
    wrong = still_right(missing, votes, write)
    if wrong and resolution is not Resolution.REWRITE:
        yield from _abort(me, "the replay differs from what was decided")
        raise ConflictError(
            f"epoch {me.epoch}: {_name(wrong)} expired, and the replay gives other rows than were decided on, so "
            "the job is not deterministic. nothing was written or dropped. choose with "
            f"'tallystick transactions resolve CHECKPOINT {me.epoch} --rewrite' (write the rows of the replay) or "
            "'--abandon' (accept the loss of these slices), then start the job again",
            epoch=me.epoch,
            slices=[vote.key for vote in wrong],
        )
    written = tuple(vote for vote in votes if vote in write)
    yield from _decide(me, written, replaces=write)
    if wrong:
        yield Note(me, "rewritten with other rows", {"decided": [vote.to_json() for vote in wrong]})
    yield from _commit(written)
    return Finished("rewritten", written)


def _name(votes: tuple[Vote, ...]) -> str:
    listed = ", ".join(f"{vote.sink}/{vote.slice}" for vote in votes[:8])
    more = f" and {len(votes) - 8} more" if len(votes) > 8 else ""
    return f"slice {listed}{more}" if len(votes) == 1 else f"slices {listed}{more}"
