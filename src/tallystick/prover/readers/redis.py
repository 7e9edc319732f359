"""Keys of Redis: entries of streams as they were added, of everything else what it holds now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallystick.errors import SinkError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.sinks.redis import Redis
from tallystick.sinks.redis.client import client_for, redis


class RedisReader(Reader):
    kind = "redis"
    servers = ("redis",)

    @classmethod
    def redirect(cls, sink: Redis, name: str, place: Place) -> Redis:
        prefix = f"{place.table_name(name)}:"
        return replace(sink, url=place.server_for_job("redis"), key_prefix=prefix, options={}, prefix="tallystick")

    @classmethod
    def latest_only(cls, sink: Redis) -> bool:
        return sink.command != "xadd"

    def read(self) -> Mapping[str, Sequence[Item]]:
        client = client_for(self.place.server("redis"), {})
        try:
            keys = sorted(client.scan_iter(f"{self.sink.key_prefix}*", count=1000))
            found: dict[str, list[Item]] = {}
            for key in keys:
                for place, row in self._rows(client, key):
                    found.setdefault(place, []).append(Item(row_text(row)))
        except redis().RedisError as failure:
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        return found

    def _rows(self, client: Any, key: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Each row with its place."""
        name = _text(key).removeprefix(self.sink.key_prefix)
        match self.sink.command:
            case "xadd":
                for _, fields in client.xrange(key):
                    yield name, {"key": name, **_texts(fields)}
            case "hset":
                yield name, {"key": name, **_texts(client.hgetall(key))}
            case "zadd":
                for member, score in client.zrange(key, 0, -1, withscores=True):
                    yield f"{name} {_text(member)}", {"key": name, "member": _text(member), "score": score}
            case _:
                value = client.get(key)
                if value is not None:
                    yield name, {"key": name, "value": _text(value)}


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
