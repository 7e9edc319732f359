"""What a declaration of the sink must look like, and the parts of a table's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tallystick.config import duration_s
from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

MODES = ("append", "upsert", "changes")
WAYS = ("auto", "prepared", "staged")
_PART = r'"(?:[^"]|"")+"|[^."]+'


def parts_of(table: str) -> list[str]:
    """``shop.orders`` as ``[shop, orders]``; a part with a dot in it is written in double quotes."""
    return [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in re.findall(_PART, table)]


def check_declared(sink: PostgreSQL) -> None:
    """`ConfigError` for what cannot be meant."""
    if not isinstance(sink.table, str) or not re.fullmatch(rf"(?:{_PART})(?:\.(?:{_PART}))?", sink.table):
        raise ConfigError(f"postgresql: table is {sink.table!r}, needed 'table' or 'schema.table'")
    if sink.mode not in MODES:
        raise ConfigError(f"postgresql: mode is {sink.mode!r}, needed one of {', '.join(MODES)}")
    if sink.via not in WAYS:
        raise ConfigError(f"postgresql: via is {sink.via!r}, needed one of {', '.join(WAYS)}")
    if isinstance(sink.key, str) or not all(isinstance(name, str) and name for name in sink.key):
        raise ConfigError(f"postgresql: key is {sink.key!r}, needed a list of columns such as ['id']")
    if sink.mode != "append" and not sink.key:
        raise ConfigError(f"postgresql: mode {sink.mode!r} needs the key, such as key=['id']")
    if (sink.mode == "changes") != (sink.delete_flag is not None):
        raise ConfigError("postgresql: mode 'changes' needs delete_flag, a boolean column of the rows; no other does")
    if sink.mode != "append" and sink.via == "prepared":
        raise ConfigError(
            f"postgresql: mode {sink.mode!r} cannot be prepared: two slices with the same key would wait for each "
            "other for ever. leave via out"
        )
    if not isinstance(sink.schema, str) or not sink.schema:
        raise ConfigError("postgresql: schema is where tokens and staging tables live: needed a name")
    duration_s(sink.lock_timeout)
