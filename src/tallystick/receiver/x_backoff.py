"""How long to wait before the X stream is asked again: as its documentation asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Backoff:
    """Network errors: linear. HTTP errors: doubled. 429: doubled from a minute, and not before the server's own time.

    Set back to the beginning when data comes.
    """

    network_step_s: float = 0.25
    network_longest_s: float = 16.0
    http_first_s: float = 5.0
    http_longest_s: float = 320.0
    limited_first_s: float = 60.0
    limited_longest_s: float = 960.0
    _network_s: float = 0.0
    _http_s: float = 0.0
    _limited_s: float = 0.0

    def worked(self) -> None:
        self._network_s = self._http_s = self._limited_s = 0.0

    def network(self) -> float:
        self._network_s = min(self._network_s + self.network_step_s, self.network_longest_s)
        return self._network_s

    def http(self, status: int, reset_s: float | None) -> float:
        """``reset_s`` is when the server says that its limit ends, from now."""
        if status != 429:
            self._http_s = min(2 * self._http_s or self.http_first_s, self.http_longest_s)
            return self._http_s
        self._limited_s = min(2 * self._limited_s or self.limited_first_s, self.limited_longest_s)
        return max(self._limited_s, reset_s or 0.0)
