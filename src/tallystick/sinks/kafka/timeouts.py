"""How long a transaction may stay open: longer than any epoch that is going well, shorter than the brokers allow."""

from __future__ import annotations

from tallystick.kafka.settings import KafkaSettings

MARGIN_S = 30.0
"""From the last row of an epoch that took as long as it may, to the end of its commit."""
OPTION = "transaction.timeout.ms"


def needed_ms(epoch_s: float) -> int:
    """What an epoch needs; ``epoch_s`` is its interval and its checkpoint's time-out together."""
    return int((epoch_s + MARGIN_S) * 1000)


def transaction_timeout_ms(settings: KafkaSettings, epoch_s: float) -> int:
    """What the user set, else what is needed."""
    given = settings.options.get(OPTION)
    return needed_ms(epoch_s) if given is None else int(given)
