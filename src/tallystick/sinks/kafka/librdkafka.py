"""The part of librdkafka's C interface that a transaction needs, called on the library that confluent-kafka brings.

confluent-kafka itself takes and returns one Python object per record. Here an array of messages points straight into
Arrow's buffers, and acknowledgements are counted by the hundred, not one by one.

Nothing of this knows about transactions of ours: `arrow_producer.py` does.
"""

from __future__ import annotations

import ctypes as c
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tallystick.errors import SinkError
from tallystick.kafka.clients import confluent

PRODUCER = 0
FLAG_COPY, FLAG_PARTITION = 0x2, 0x8
PARTITION_UNASSIGNED = -1
EVENT_DELIVERY, EVENT_LOG, EVENT_ERROR, EVENT_STATS = 0x1, 0x4, 0x8, 0x40
QUEUE_FULL, TIMED_OUT, UNKNOWN_TOPIC = -184, -185, 3

MESSAGE = np.dtype(
    {
        "names": ["err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "private"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""``rd_kafka_message_t`` of a 64-bit system."""


class Variant(c.Structure):
    """``rd_kafka_vu_t``: one argument of ``rd_kafka_produceva``."""

    class _Value(c.Union):
        class _Memory(c.Structure):
            _fields_ = (("ptr", c.c_void_p), ("size", c.c_size_t))

        class _Header(c.Structure):
            _fields_ = (("name", c.c_char_p), ("val", c.c_char_p), ("size", c.c_ssize_t))

        _fields_ = (
            ("i32", c.c_int32),
            ("i", c.c_int),
            ("ptr", c.c_void_p),
            ("mem", _Memory),
            ("header", _Header),
            ("pad", c.c_char * 64),
        )

    _fields_ = (("vtype", c.c_int), ("u", _Value))


V_RKT, V_PARTITION, V_VALUE, V_KEY, V_FLAGS, V_HEADER = 2, 3, 4, 5, 7, 9

_SIGNATURES: Mapping[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (c.c_void_p, []),
    "rd_kafka_conf_set": (c.c_int, [c.c_void_p, c.c_char_p, c.c_char_p, c.c_char_p, c.c_size_t]),
    "rd_kafka_conf_set_events": (None, [c.c_void_p, c.c_int]),
    "rd_kafka_conf_destroy": (None, [c.c_void_p]),
    "rd_kafka_new": (c.c_void_p, [c.c_int, c.c_void_p, c.c_char_p, c.c_size_t]),
    "rd_kafka_destroy": (None, [c.c_void_p]),
    "rd_kafka_set_log_queue": (c.c_int, [c.c_void_p, c.c_void_p]),
    "rd_kafka_queue_get_main": (c.c_void_p, [c.c_void_p]),
    "rd_kafka_queue_destroy": (None, [c.c_void_p]),
    "rd_kafka_queue_poll": (c.c_void_p, [c.c_void_p, c.c_int]),
    "rd_kafka_event_type": (c.c_int, [c.c_void_p]),
    "rd_kafka_event_error": (c.c_int, [c.c_void_p]),
    "rd_kafka_event_error_string": (c.c_char_p, [c.c_void_p]),
    "rd_kafka_event_stats": (c.c_char_p, [c.c_void_p]),
    "rd_kafka_event_log": (
        c.c_int,
        [c.c_void_p, c.POINTER(c.c_char_p), c.POINTER(c.c_char_p), c.POINTER(c.c_int)],
    ),
    "rd_kafka_event_message_count": (c.c_size_t, [c.c_void_p]),
    "rd_kafka_event_message_array": (c.c_size_t, [c.c_void_p, c.POINTER(c.c_void_p), c.c_size_t]),
    "rd_kafka_event_destroy": (None, [c.c_void_p]),
    "rd_kafka_topic_new": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "rd_kafka_topic_destroy": (None, [c.c_void_p]),
    "rd_kafka_produce_batch": (c.c_int, [c.c_void_p, c.c_int32, c.c_int, c.c_void_p, c.c_int]),
    "rd_kafka_produceva": (c.c_void_p, [c.c_void_p, c.POINTER(Variant), c.c_size_t]),
    "rd_kafka_metadata": (c.c_int, [c.c_void_p, c.c_int, c.c_void_p, c.POINTER(c.c_void_p), c.c_int]),
    "rd_kafka_metadata_destroy": (None, [c.c_void_p]),
    "rd_kafka_flush": (c.c_int, [c.c_void_p, c.c_int]),
    "rd_kafka_init_transactions": (c.c_void_p, [c.c_void_p, c.c_int]),
    "rd_kafka_begin_transaction": (c.c_void_p, [c.c_void_p]),
    "rd_kafka_abort_transaction": (c.c_void_p, [c.c_void_p, c.c_int]),
    "rd_kafka_error_code": (c.c_int, [c.c_void_p]),
    "rd_kafka_error_string": (c.c_char_p, [c.c_void_p]),
    "rd_kafka_error_destroy": (None, [c.c_void_p]),
    "rd_kafka_err2str": (c.c_char_p, [c.c_int]),
}


@functools.cache
def library() -> Any:
    """The library that confluent-kafka is linked with; its symbols are found through the extension module itself."""
    confluent()
    from confluent_kafka import cimpl

    loaded = c.CDLL(cimpl.__file__)
    if c.sizeof(c.c_void_p) != 8:
        raise SinkError("records from Arrow's memory need a 64-bit system: declare the sink with send='objects'")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def available() -> bool:
    """Whether the library can be called here; where it cannot, records are sent as Python objects."""
    try:
        library()
    except (AttributeError, OSError, SinkError):
        return False
    return True


class LibrdkafkaError(Exception):
    """librdkafka said no: its code and its words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def raise_for(error: int | None) -> None:
    """Raise what an ``rd_kafka_error_t *`` says; None is no error."""
    if error is None:
        return
    lib = library()
    code, text = lib.rd_kafka_error_code(error), lib.rd_kafka_error_string(error).decode(errors="replace")
    lib.rd_kafka_error_destroy(error)
    raise LibrdkafkaError(code, text)


def words(code: int) -> str:
    return str(library().rd_kafka_err2str(code).decode(errors="replace"))


def new_handle(settings: Mapping[str, str]) -> int:
    """A producer. `LibrdkafkaError` names the setting that librdkafka does not take."""
    lib = library()
    conf = lib.rd_kafka_conf_new()
    reason = c.create_string_buffer(512)
    for name, value in settings.items():
        if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), reason, len(reason)) != 0:
            lib.rd_kafka_conf_destroy(conf)
            raise LibrdkafkaError(-186, reason.value.decode(errors="replace"))
    lib.rd_kafka_conf_set_events(conf, EVENT_DELIVERY | EVENT_STATS | EVENT_ERROR | EVENT_LOG)
    handle = lib.rd_kafka_new(PRODUCER, conf, reason, len(reason))
    if not handle:
        lib.rd_kafka_conf_destroy(conf)
        raise LibrdkafkaError(-186, reason.value.decode(errors="replace"))
    return int(handle)


def first_message(event: int) -> Any:
    """The first of the messages that an event is about; to be used while the event lives."""
    pointers = (c.c_void_p * 1)()
    library().rd_kafka_event_message_array(event, pointers, 1)
    memory: Any = (c.c_char * MESSAGE.itemsize).from_address(pointers[0] or 0)
    return np.frombuffer(memory, MESSAGE)[0]
