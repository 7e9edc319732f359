"""Rows as documents of an index of OpenSearch or Elasticsearch: written again, they are the same documents."""

from tallystick.sinks.opensearch.sink import Elasticsearch, OpenSearch

__all__ = ["Elasticsearch", "OpenSearch"]
