"""Indices of OpenSearch, as a search sees them after a refresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tallystick.errors import SinkError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.sinks.opensearch import OpenSearch
from tallystick.sinks.opensearch.client import Connection

DOCUMENTS_MAX = 10_000
"""What one search shows."""


class OpenSearchReader(Reader):
    kind = "opensearch"
    servers = ("opensearch",)

    @classmethod
    def redirect(cls, sink: OpenSearch, name: str, place: Place) -> OpenSearch:
        index = place.table_name(name)
        return replace(
            sink,
            hosts=place.server_for_job("opensearch"),
            index=index,
            create=True,
            dead_letter=None if sink.dead_letter is None else f"{index}_dead",
            username=None,
            password=None,
            tls=None,
        )

    @classmethod
    def latest_only(cls, sink: OpenSearch) -> bool:
        return sink.id is not None

    def read(self) -> Mapping[str, Sequence[Item]]:
        """A document is a place: of two with the same content both count."""
        server = Connection.of(self.place.server("opensearch"))
        try:
            server.ask("POST", f"/{self.sink.index}/_refresh", absent={})
            asked = {"size": DOCUMENTS_MAX, "track_total_hits": True}
            found = server.ask("POST", f"/{self.sink.index}/_search", asked, absent={})
        except OSError as failure:
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        hits = found.get("hits", {"hits": [], "total": {"value": 0}})  # the job makes the index when it starts
        if hits["total"]["value"] > DOCUMENTS_MAX:
            raise SinkError(
                f"{self.sink.target} has {hits['total']['value']} documents, and a search shows {DOCUMENTS_MAX}: prove "
                "it with fewer --records"
            )
        return {hit["_id"]: [Item(row_text(hit["_source"]))] for hit in hits["hits"]}


class ElasticsearchReader(OpenSearchReader):
    kind = "elasticsearch"
    proves = "on OpenSearch, which has the same bulk interface: no Elasticsearch is started"
