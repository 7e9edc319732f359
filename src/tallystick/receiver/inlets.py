"""The inlets by kind. Each is imported when it is needed: they have client libraries of their own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tallystick.errors import ConfigError
from tallystick.receiver.inlet import Inlet
from tallystick.records import Json

KINDS = {
    "rabbitmq": "tallystick.receiver.rabbitmq:RabbitInlet",
    "socket": "tallystick.receiver.sockets:SocketInlet",
    "x-stream": "tallystick.receiver.x_stream:XStreamInlet",
}
"""To add an inlet, name its class here. It is made from its settings alone."""


def inlet_of(settings: Json) -> Inlet:
    """The inlet of ``{"kind": …, …}``."""
    given: dict[str, Any] = dict(settings)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"there is no inlet {kind!r}: needed one of {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    made: Inlet = getattr(import_module(module), name)(**given)
    return made
