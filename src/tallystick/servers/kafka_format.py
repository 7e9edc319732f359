"""Format a broker's data folder: a cluster id, a node id, and the feature levels to begin with.

Kafka's StorageTool does it, in a JVM that lives for more than a second. What it writes about features is the same for
every broker of one version, so the first one's file is kept in the cache, and the other brokers get a copy.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from tallystick.jvm import cache_folder

_FEATURES = "bootstrap.checkpoint"


def new_id() -> str:
    """An id as Kafka writes them. A leading dash would read as an option of its tools."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{made[1:]}" if made.startswith("-") else made


def format_with_tool(data: Path, run_tool: Callable[[], None]) -> None:
    """``run_tool`` runs StorageTool, which wants a folder that was not formatted before."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    run_tool()


def format_data(data: Path, version: str, cluster_id: str, node_id: int, run_tool: Callable[[], None]) -> None:
    """``run_tool`` is called only if no broker of this version was formatted yet. May be called again."""
    kept = cache_folder() / f"kafka-{version}-{_FEATURES}"
    if not kept.exists():
        format_with_tool(data, run_tool)
        _keep(data / _FEATURES, kept)
        return
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    shutil.copyfile(kept, data / _FEATURES)
    facts = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    lines = [f"{name}={value}" for name, value in facts.items()]
    (data / "meta.properties").write_text("\n".join([*lines, ""]))


def _keep(made: Path, kept: Path) -> None:
    """Others see no file or a whole one."""
    with tempfile.NamedTemporaryFile(dir=kept.parent, prefix="building-", delete=False) as copy:
        copy.write(made.read_bytes())
        copy.flush()
        os.fsync(copy.fileno())
    Path(copy.name).replace(kept)
