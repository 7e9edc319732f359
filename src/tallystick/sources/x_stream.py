"""The filtered stream of the X (Twitter) API, through a receiver log: exactly-once from receipt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json, Mode
from tallystick.sources.received import ReceivedSource, ReceiverSettings

BACKFILL_MINUTES_MAX = 5


@dataclass(frozen=True)
class XStream(ReceivedSource):
    """Posts that match the rules of an account, as the API's filtered stream sends them: ``value`` is the JSON text.

    The bearer token is read from the environment, from the variable ``token_from``: it is written down nowhere.
    ``parameters`` are those of the API, such as ``{"tweet.fields": "created_at,lang"}``; rules are set with the API.
    ``backfill_minutes`` (up to 5, if the account has it) asks for what was missed while the connection was lost; posts
    that come again are known by their ids. ``silence`` is how long the server may send nothing, no sign of life either.

    The stream cannot be replayed: what was sent while no receiver was connected, and backfill did not bring, is lost.
    The receiver counts such seconds as ``missed_s``.
    """

    facts = SourceFacts(
        "x-stream",
        Mode.AT_MOST_ONCE,
        "from receipt exactly-once: appended to the receiver log and synced, repeats known by their post ids",
        "what was sent while no receiver was connected is lost, except for the minutes of backfill; the folder of the "
        "log is one that all workers see",
        from_receipt=Mode.EXACTLY_ONCE,
    )

    log: str | os.PathLike[str]
    token_from: str = field(default="X_BEARER_TOKEN", kw_only=True)
    parameters: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    backfill_minutes: int = field(default=0, kw_only=True)
    silence: str = field(default="20s", kw_only=True)
    url: str = field(default="https://api.x.com", kw_only=True)
    partitions: int = field(default=1, kw_only=True)
    max_records_per_epoch: int | None = field(default=None, kw_only=True)
    receiver: ReceiverSettings = field(default=ReceiverSettings(), kw_only=True)

    def __post_init__(self) -> None:
        self._check()
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ConfigError(f"x-stream: url is {self.url!r}, needed such as https://api.x.com")
        if isinstance(self.backfill_minutes, bool) or self.backfill_minutes not in range(BACKFILL_MINUTES_MAX + 1):
            raise ConfigError(f"x-stream: backfill_minutes is {self.backfill_minutes!r}, needed 0 to 5")
        if "backfill_minutes" in self.parameters:
            raise ConfigError("x-stream: declare backfill_minutes= instead of the parameter of that name")
        if duration_s(self.silence) <= 0:
            raise ConfigError(f"x-stream: silence is {self.silence!r}, needed more than nothing, such as '20s'")
        if not self.token_from:
            raise ConfigError("x-stream: token_from is empty, needed the name of a variable of the environment")

    @property
    def name(self) -> str:
        return f"x-stream:{urlsplit(self.url).netloc}"

    @property
    def text(self) -> str | None:
        return "utf-8"

    def inlet(self) -> Json:
        return {
            "kind": "x-stream",
            "url": self.url,
            "token_from": self.token_from,
            "parameters": dict(self.parameters),
            "backfill_minutes": self.backfill_minutes,
            "silence_s": duration_s(self.silence),
            "max_record_bytes": self.receiver.max_record_bytes,
            "patience_s": duration_s(self.receiver.patience),
        }
