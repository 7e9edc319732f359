"""Collections: the rows are made where they are read. Read this feed first."""

from __future__ import annotations

from typing import Any

from tallystick.prover.feeds.base import Feed, Rows
from tallystick.prover.place import Place
from tallystick.prover.rows import row_of
from tallystick.prover.workload import LANES
from tallystick.sources import Collection
from tallystick.sources.rows import parse_ddl


class CollectionFeed(Feed):
    kind = "collection"

    @classmethod
    def redirect(cls, source: Collection, rows: Rows, place: Place) -> Collection:
        schema = parse_ddl(source.schema) if isinstance(source.schema, str) else source.schema

        def row(index: int) -> Any:
            record = rows.record(index)
            return row_of(record, schema) if rows.made is None else rows.made(record)

        workload = rows.workload
        row(0)  # what cannot be filled in is found now, and not on an executor
        return Collection(
            row, schema, per_epoch=workload.per_epoch, partitions=LANES, length=len(workload), name=source.name
        )

    @classmethod
    def fill(cls, source: Collection, rows: Rows, place: Place) -> None:
        """Nothing to put anywhere."""
