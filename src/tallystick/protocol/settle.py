"""Settling an epoch that was decided before: which votes are in force, what is missing, what may be rewritten.

Pure functions over records and votes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.records import Decision, Fingerprint, Json, Parts, Record, Vote, totals_by_sink


def in_force(records: Iterable[Record]) -> tuple[Vote, ...] | None:
    """The votes that make up a decided epoch, or None if no attempt at it was decided COMMIT.

    The first COMMIT names all slices; later ones replace some of them, or whole sinks. A later COMMIT that
    replaces nothing (from a time when the job ran at-least-once) starts again from its own votes.
    """
    votes: tuple[Vote, ...] | None = None
    for record in sorted(records, key=lambda record: record.attempt.generation):
        if record.decision is not Decision.COMMIT:
            continue
        if votes is None or record.replaces is None:
            votes = record.votes
        else:
            replaced = record.replaces
            votes = tuple(vote for vote in votes if vote not in replaced) + record.votes
    return votes


def to_rewrite(decided: tuple[Vote, ...], missing: tuple[Vote, ...]) -> Parts:
    """What to write again. A sink that lost all its slices is written whole, however it is sliced this time.

    Not if rows were refused: which ones is known slice by slice.
    """
    lost = {vote.key for vote in missing}
    if any(vote.refused for vote in decided):
        return Parts(slices=frozenset(lost))
    held = {vote.sink for vote in decided if vote.committable is not None and vote.key not in lost}
    whole = frozenset(vote.sink for vote in missing) - held
    return Parts(whole, frozenset(key for key in lost if key[0] not in whole))


def still_right(missing: tuple[Vote, ...], votes: tuple[Vote, ...], write: Parts) -> tuple[Vote, ...]:
    """The missing votes whose rows the replay does not give again; empty if all may be rewritten."""
    replayed = {vote.key: vote.fingerprint for vote in votes}
    decided_totals, replayed_totals = totals_by_sink(missing), totals_by_sink(votes)
    return tuple(
        vote
        for vote in missing
        if (
            decided_totals[vote.sink] != replayed_totals.get(vote.sink, Fingerprint())
            if vote.sink in write.sinks
            else replayed.get(vote.key) != vote.fingerprint
        )
    )


def differences(decided: tuple[Vote, ...], replayed: tuple[Vote, ...]) -> dict[str, Json]:
    """Sinks whose whole output differs between what was decided and what the replay gives."""
    before, now = totals_by_sink(decided), totals_by_sink(replayed)
    return {
        sink: {
            "decided": str(before.get(sink, Fingerprint())),
            "replayed": str(now.get(sink, Fingerprint())),
        }
        for sink in sorted(before.keys() | now.keys())
        if before.get(sink, Fingerprint()) != now.get(sink, Fingerprint())
    }
