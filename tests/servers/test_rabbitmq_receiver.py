"""The RabbitMQ inlet on a real broker: acknowledged after the log, repeats known, connections lost, bad messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pika
import psutil
import pytest

from rabbit_queues import make_queue, numbers_in, publish, spec, unacknowledged, wait_for
from real_servers import started
from tallystick.errors import SourceError
from tallystick.receiver import LogReader, LogSettings
from tallystick.receiver.process import ReceiverSpec, ensure_received, stop_receiver
from tallystick.receiver.status import read_status
from tallystick.servers import RabbitMQ
from tallystick.servers.certificates import Certificates
from tallystick.servers.ports import LOOPBACK, free_ports


@contextmanager
def receiving(made: ReceiverSpec) -> Iterator[Path]:
    folder = Path(made.folder)
    ensure_received(made, os.getpid())
    try:
        yield folder
    finally:
        stop_receiver(folder)


def wait_durable(folder: Path, count: int) -> None:
    wait_for(f"{count} records", lambda: LogReader(folder).durable >= count)


def dead_letters(folder: Path) -> dict[str, str]:
    """Reason by value."""
    reader = LogReader(folder / "dead-letters")
    return {
        record.value.decode(errors="replace"): record.attributes["reason"]
        for _, record in reader.records(0, reader.durable)
    }


def test_messages_are_acknowledged_when_they_are_in_the_log(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, range(100))
    with receiving(spec(tmp_path, rabbitmq.address, queue)) as folder:
        wait_durable(folder, 100)
        assert "guest" not in str(psutil.Process(read_status(folder)["pid"]).cmdline()), "its password, for everybody"
    for file in ("status.json", "receiver.log"):
        assert "guest" not in (tmp_path / file).read_text()
    assert numbers_in(tmp_path) == list(range(100))
    assert unacknowledged(rabbitmq.address, queue) == 0
    record = next(iter(LogReader(tmp_path).records(0, 1)))[1]
    assert record.id == "id-0"
    assert record.attributes["routing_key"] == queue
    assert record.received_us > 0


def test_a_repeat_is_known_by_message_id_or_correlation_id(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """A publisher that lost its confirmation sends again; in one run of the receiver, and over a restart."""
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, range(5))
    publish(rabbitmq.address, queue, range(5, 8), message_id=None, correlation_id="the same")
    publish(rabbitmq.address, queue, range(3))
    with receiving(spec(tmp_path, rabbitmq.address, queue)) as folder:
        wait_for("an empty queue", lambda: unacknowledged(rabbitmq.address, queue) == 0)
        wait_durable(folder, 6)
    publish(rabbitmq.address, queue, range(5))
    with receiving(spec(tmp_path, rabbitmq.address, queue)) as folder:
        wait_for("the repeats", lambda: read_status(folder)["counts"]["repeated"] >= 2 + 3 + 5)
    assert numbers_in(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_bad_messages_go_to_the_dead_letters_and_are_counted(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, [1])
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.address))
    channel = connection.channel()
    channel.basic_publish("", queue, b"no id")
    channel.basic_publish("", queue, b"\xff\xfe", pika.BasicProperties(message_id="a"))
    channel.basic_publish("", queue, b"x" * 1001, pika.BasicProperties(message_id="b"))
    connection.close()
    publish(rabbitmq.address, queue, [2])
    with receiving(spec(tmp_path, rabbitmq.address, queue)) as folder:
        wait_durable(folder, 2)
        wait_for("the count", lambda: read_status(folder)["counts"].get("refused") == 3)
    assert numbers_in(tmp_path) == [1, 2]
    found = dead_letters(tmp_path)
    assert "no message_id and no correlation_id" in found["no id"]
    assert "no utf-8" in found["\ufffd\ufffd"]
    assert "1001 bytes" in found["x" * 1001]
    assert unacknowledged(rabbitmq.address, queue) == 0


def test_a_bad_message_stops_the_receiver_if_asked_to_and_stays_in_the_queue(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, [1])
    publish(rabbitmq.address, queue, [2], message_id=None)
    made = spec(tmp_path, rabbitmq.address, queue)
    with suppress(SourceError):  # it may fail before it is seen to have started
        ensure_received(ReceiverSpec(made.folder, made.inlet, made.log, stop_at_bad=True), os.getpid())
    wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert "a record was refused: it has no message_id" in read_status(tmp_path)["error"]
    assert numbers_in(tmp_path) == [1]
    wait_for("the messages", lambda: unacknowledged(rabbitmq.address, queue) == 2)


def test_messages_without_ids_are_taken_if_declared_and_counted(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, [1, 1], message_id=None)
    with receiving(spec(tmp_path, rabbitmq.address, queue, accept_without_id=True)) as folder:
        wait_durable(folder, 2)
        wait_for("the count", lambda: read_status(folder)["counts"].get("without_id") == 2)


@pytest.mark.parametrize(
    ("user", "queue", "says"),
    [
        ("guest:wrong", None, "refuses this user"),
        ("guest:guest", "no-such-queue", "does not give the queue 'no-such-queue': 404"),
    ],
)
def test_what_can_never_work_is_told_at_once(
    rabbitmq: RabbitMQ, tmp_path: Path, user: str, queue: str | None, says: str
) -> None:
    name = queue or make_queue(rabbitmq.address)
    made = spec(tmp_path, rabbitmq.address_of(rabbitmq.ports[0], user), name)
    with pytest.raises(SourceError, match=says) as caught:
        ensure_received(made, os.getpid())
    assert "wrong" not in str(caught.value)
    assert "wrong" not in (tmp_path / "receiver.log").read_text()


def test_a_server_that_is_away_for_too_long_is_an_error(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    with rabbitmq.proxy() as proxy:
        ensure_received(spec(tmp_path, rabbitmq.address_of(proxy.port), queue, patience_s=1.0), os.getpid())
        proxy.cut()
        wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert "has not answered for 1 s" in read_status(tmp_path)["error"]


def test_lost_connections_lose_and_repeat_nothing(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Cut while messages flow, again and again: what was not acknowledged comes again, and is known."""
    queue = make_queue(rabbitmq.address)
    with rabbitmq.proxy() as proxy, receiving(spec(tmp_path, rabbitmq.address_of(proxy.port), queue)) as folder:
        for sent in range(0, 3000, 600):
            publish(rabbitmq.address, queue, range(sent, sent + 600))
            wait_durable(folder, sent + 300)
            proxy.drop()
        wait_durable(folder, 3000)
        wait_for("an empty queue", lambda: unacknowledged(rabbitmq.address, queue) == 0)
        # half of a share comes after the cut before it: there was a connection to cut each time
        wait_for("the count", lambda: read_status(folder)["counts"]["connections_lost"] >= 5)
    assert sorted(numbers_in(tmp_path)) == list(range(3000))


def test_a_full_log_stops_receiving_and_goes_on_when_there_is_room(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """The broker keeps what it may not send: prefetch is the back-pressure."""
    queue = make_queue(rabbitmq.address)
    publish(rabbitmq.address, queue, range(300))
    small = LogSettings(max_bytes=4000, segment_bytes=1000)
    with receiving(spec(tmp_path, rabbitmq.address, queue, small)) as folder:
        wait_for("a full log", lambda: read_status(folder)["state"] == "full")
        stuck = LogReader(folder).durable
        time.sleep(0.5)
        assert LogReader(folder).durable == stuck < 300
        seen: list[int] = []
        while len(seen) < 300:
            reader = LogReader(folder)
            seen += [int(record.value) for _, record in reader.records(len(seen), reader.durable)]
            reader.settle(len(seen))
            time.sleep(0.05)
    assert seen == list(range(300))


def test_a_stream_is_read_by_its_offsets_without_ids(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address, x_queue_type="stream")
    publish(rabbitmq.address, queue, range(50), message_id=None)
    for count in (50, 80):
        publish(rabbitmq.address, queue, range(50, count), message_id=None)
        with receiving(spec(tmp_path, rabbitmq.address, queue, stream="first")) as folder:
            wait_durable(folder, count)
    assert numbers_in(tmp_path) == list(range(80))
    offsets = [int(record.attributes["stream_offset"]) for _, record in LogReader(tmp_path).records(0, 80)]
    assert offsets == list(range(80))


def test_a_queue_that_is_deleted_ends_the_receiver_with_its_name(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    ensure_received(spec(tmp_path, rabbitmq.address, queue), os.getpid())
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.address))
    connection.channel().queue_delete(queue)
    connection.close()
    wait_for("the end", lambda: read_status(tmp_path).get("state") == "failed")
    assert f"does not give the queue '{queue}': 404" in read_status(tmp_path)["error"]


def test_a_stream_from_the_next_message_on_has_no_gap(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Nothing from before; and what comes while the connection is lost, before the first message, is not lost."""
    queue = make_queue(rabbitmq.address, x_queue_type="stream")
    publish(rabbitmq.address, queue, range(10), message_id=None)
    time.sleep(1.1)  # an older chunk than the second in which the receiver begins
    with rabbitmq.proxy() as proxy:
        made = spec(tmp_path, rabbitmq.address_of(proxy.port), queue, stream="next")
        with receiving(made) as folder:
            wait_for("the consumer", lambda: read_status(folder).get("connected"))
            proxy.cut()
            wait_for("the loss", lambda: read_status(folder)["counts"]["connections_lost"] >= 1)
            publish(rabbitmq.address, queue, range(10, 40), message_id=None)
            proxy.heal()
            wait_durable(folder, 30)
    publish(rabbitmq.address, queue, range(40, 50), message_id=None)
    with receiving(spec(tmp_path, rabbitmq.address, queue, stream="next")) as folder:
        wait_durable(folder, 40)
    assert numbers_in(tmp_path) == list(range(10, 50))


def test_a_quorum_queue_counts_deliveries_and_a_message_that_nobody_takes_is_a_dead_letter(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    queue = make_queue(rabbitmq.address, x_queue_type="quorum", x_delivery_limit=100)
    publish(rabbitmq.address, queue, [1])
    for _ in range(5):  # somebody takes it and dies
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.address))
        wait_for("the message", lambda c=connection: c.channel().basic_get(queue)[0] is not None)
        connection.close()
    publish(rabbitmq.address, queue, range(2, 30))
    with receiving(spec(tmp_path, rabbitmq.address, queue, max_deliveries=3)) as folder:
        wait_durable(folder, 28)
        wait_for("the count", lambda: read_status(folder)["counts"].get("refused") == 1)
        wait_for("an empty queue", lambda: unacknowledged(rabbitmq.address, queue) == 0)
    assert sorted(numbers_in(tmp_path)) == list(range(2, 30))
    [reason] = dead_letters(tmp_path).values()
    assert "times and never acknowledged" in reason


@pytest.mark.slow  # a broker of its own
def test_amqps_is_received_from_and_a_certificate_that_is_not_trusted_is_told(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make()
    [port] = free_ports(1)
    settings = {
        "listeners.ssl.1": f"{LOOPBACK}:{port}",
        "ssl_options.cacertfile": str(certificates.ca_file),
        "ssl_options.certfile": str(certificates.server_file),
        "ssl_options.keyfile": str(certificates.folder / "server.key"),
    }
    trusted = quote(repr({"ca_certs": str(certificates.ca_file)}))
    with started(RabbitMQ(tmp_path / "server", settings=settings)) as server:
        queue = make_queue(server.address)
        publish(server.address, queue, range(20))
        secured = server.address_of(port).replace("amqp://", "amqps://")
        with receiving(spec(tmp_path / "log", f"{secured}?ssl_options={trusted}", queue)) as folder:
            wait_durable(folder, 20)
            assert read_status(folder)["address"] == f"{LOOPBACK}:{port}"
        with suppress(SourceError):  # it may fail before it is seen to have started
            ensure_received(spec(tmp_path / "other", secured, queue, patience_s=1.0), os.getpid())
        wait_for("the end", lambda: read_status(tmp_path / "other").get("state") == "failed")
        assert "certificate verify failed" in read_status(tmp_path / "other")["error"]
    assert numbers_in(tmp_path / "log") == list(range(20))
