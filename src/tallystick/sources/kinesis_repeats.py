"""Repeats of our own Kinesis sink are dropped, by the marks of its records (`tallystick.kinesis.marks`).

To know a repeat one must know what the newest epoch of the writing job has brought so far. An offset cannot hold all of
that, so it holds where it begins: for each shard and writing job the newest epoch and, by shard, the sequence number of
its first record. Whoever goes on from an offset reads from there once more, and knows what the last reader knew. A
shard that came out of others begins with what they knew: a row that was sent before a split may come again after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tallystick.kinesis.marks import Repeats, parse
from tallystick.records import Json
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_shards import sequence_of


def advance(anchors: Json, shard: str, records: Iterable[Any]) -> Json:
    """The anchors of a shard after some more of its records."""
    made = dict(anchors)
    for record in records:
        mark = parse(record["PartitionKey"])[1]
        if mark is not None and mark.epoch > made.get(mark.job, {"epoch": -1})["epoch"]:
            made[mark.job] = {"epoch": mark.epoch, "since": {shard: record["SequenceNumber"]}}
    return made


def inherited(parents: Iterable[Json]) -> Json:
    """The anchors that a shard begins with."""
    made: dict[str, Json] = {}
    for anchors in parents:
        for job, anchor in anchors.items():
            known = made.get(job, {"epoch": -1, "since": {}})
            if anchor["epoch"] > known["epoch"]:
                made[job] = anchor
            elif anchor["epoch"] == known["epoch"]:
                made[job] = {"epoch": anchor["epoch"], "since": {**known["since"], **anchor["since"]}}
    return made


def rebuilt(client: KinesisClient, anchors: Json, shard: str, position: str) -> Repeats:
    """What a reader of this shard knows at this position."""
    since: dict[str, str] = {}
    for anchor in anchors.values():
        for name, sequence in anchor["since"].items():
            since[name] = min(since.get(name, sequence), sequence, key=int)
    repeats = Repeats()
    for name in sorted(since, key=lambda name: (name == shard, name)):  # parents first
        stop = int(sequence_of(position) or 0) if name == shard else None
        for page, behind_ms in client.read_from(name, since[name]):
            known = [record for record in page if stop is None or int(record["SequenceNumber"]) <= stop]
            kept(known, repeats)
            if len(known) < len(page) or behind_ms is None or (not page and behind_ms == 0):
                break
    return repeats


def kept(records: Iterable[Any], repeats: Repeats) -> list[Any]:
    """Those that were not there before, with their users' own keys."""
    made = []
    for record in records:
        key, mark = parse(record["PartitionKey"])
        if not repeats.drop(mark, record["Data"]):
            made.append(record if mark is None else {**record, "PartitionKey": key})
    return made


def with_parents(anchors: Mapping[str, Json], shard: str, parents: Iterable[str]) -> Json:
    """The anchors of a shard as an offset has them; of one that is new there, those of its parents."""
    known = anchors.get(shard)
    return known if known is not None else inherited(anchors.get(parent, {}) for parent in parents)
