"""How far a job is behind a stream of Kinesis: one record per shard is looked at, whatever waits behind it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_shards import BEGINNING, descendants, first_shards, is_drained


def behind_ms(client: KinesisClient, starting: str, positions: Mapping[str, str] | None) -> int:
    """The age of the oldest record that is not read, over all shards; 0 if there is none.

    ``positions`` are those of an offset, None if nothing was read yet. A shard whose parents are not read to their end
    waits as a whole.
    """
    if positions is None and starting == "latest":
        return 0  # it begins with what comes then
    listed = {shard.name: shard for shard in client.shards()}
    if positions is None:
        since = BEGINNING if starting == "earliest" else f"@{float(starting):.3f}"
        positions = dict.fromkeys(first_shards(list(listed.values())), since)
    begun = set(positions)
    unseen = [name for name in listed if name not in begun and not begun & descendants(name, listed)]
    waiting = {name: at for name, at in positions.items() if name in listed and not is_drained(at)}
    waiting |= dict.fromkeys(unseen, BEGINNING)
    return max((_behind_ms(client, name, at) for name, at in waiting.items()), default=0)


def _behind_ms(client: KinesisClient, shard: str, position: str) -> int:
    for records, behind in client.read(shard, position, limit=1):
        if records:
            arrived = records[0].get("ApproximateArrivalTimestamp")
            age_s = 0.0 if arrived is None else time.time() - arrived.timestamp()
            return max(1, behind or 0, round(age_s * 1000))
        return behind or 0
    return 0
