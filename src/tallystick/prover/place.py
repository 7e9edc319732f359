"""Where a proof takes place: folders, topics and servers of the prover's own. Nothing of the user's is touched."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tallystick.errors import ConfigError
from tallystick.records import Json
from tallystick.servers.ports import free_ports

TABLE_LETTERS_MAX = 48
"""What every server takes as a name; Cassandra takes the least."""


@dataclass(frozen=True)
class Place:
    """One run of a job, from an empty checkpoint to the end of the workload, however often it is killed on the way.

    ``folder`` is the campaign's; all runs read the same inputs there. ``run`` names this one: its checkpoint and its
    outputs are its own. ``for_job`` has the addresses of servers as the job shall see them, which may lead through a
    proxy that breaks; ``direct`` those for feeds and readers.
    """

    folder: str
    run: str
    for_job: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    """The checkpoint's timeout, where it shall be shorter than declared: so that transactions expire in minutes."""

    @property
    def own(self) -> Path:
        return Path(self.folder) / self.run

    @property
    def checkpoint(self) -> Path:
        return self.own / "checkpoint"

    @property
    def journal(self) -> Path:
        return self.checkpoint / "tallystick"

    def input(self, source: str) -> Path:
        return Path(self.folder) / "input" / source

    def output(self, sink: str) -> Path:
        return self.own / "output" / sink

    def input_name(self, source: str) -> str:
        """For what servers hold instead of folders: topics, tables, queues."""
        return f"prove-input-{source}"

    def output_name(self, sink: str) -> str:
        return f"prove-{self.run}-{sink}"

    def table_name(self, sink: str) -> str:
        """The same for servers that take nothing but small letters, digits and underscores."""
        name = re.sub(r"\W", "_", f"prove_{self.run}_{sink}", flags=re.ASCII).lower()
        if name != self.output_name(sink).replace("-", "_") or len(name) > TABLE_LETTERS_MAX:
            name = f"{name[: TABLE_LETTERS_MAX - 9]}_{hashlib.sha256(sink.encode()).hexdigest()[:8]}"
        return name

    def received(self, source: str) -> Path:
        """This run's own receiver log, for sources that read one."""
        return self.own / "received" / source

    def port(self, name: str) -> int:
        """For a source or sink that the prover itself talks to: chosen once, then the same for all processes."""
        noted = self.own / "ports" / f"{self.table_name(name)}.json"
        if not noted.exists():
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(json.dumps(free_ports(1)[0]))
        return int(json.loads(noted.read_text()))

    def server_for_job(self, kind: str) -> str:
        return _address(self.for_job, kind)

    def server(self, kind: str) -> str:
        return _address(self.direct, kind)

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Place:
        return cls(**value)


def _address(known: Mapping[str, str], kind: str) -> str:
    if kind not in known:
        raise ConfigError(f"no server of kind {kind!r} was started for this proof: it has {sorted(known)}")
    return known[kind]
