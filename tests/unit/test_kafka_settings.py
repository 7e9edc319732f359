"""One set of Kafka settings for three clients: each line is tried on the real libraries, no broker is needed."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
from typing import Any, Literal

import pytest

from tallystick.errors import ConfigError, MissingExtraError
from tallystick.kafka import clients, jaas
from tallystick.kafka.options import OPTIONS, REFUSED, Option
from tallystick.kafka.settings import KafkaSettings

confluent = clients.confluent()
SERVERS = "127.0.0.1:1"
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
ALICE = {**SCRAM, "sasl.username": "alice", "sasl.password": 'a "b" \\c;'}


# --- The table of options, on real clients


def sample(option: Option) -> str:
    """A value that is not the default of either client, so that it could not pass by being ignored."""
    own = {"acks": "all", "enable.idempotence": "true", "max.in.flight.requests.per.connection": "3"}
    own |= {"linger.ms": "7", "retry.backoff.ms": "120"}  # they have to be below others
    if option.name in own:
        return own[option.name]
    if option.kind == "switch":
        return "false"
    if option.kind == "text":
        return option.choices[-1] if option.choices else "some-text"
    return str(int(max(option.low, 5001 if option.high > 5001 else option.high)))


TRANSLATED = [option for option in OPTIONS.values() if option.librdkafka]


@pytest.mark.parametrize("option", TRANSLATED, ids=lambda option: option.name)
def test_librdkafka_takes_every_option_that_is_translated(option: Option, caplog: pytest.LogCaptureFixture) -> None:
    roles: list[Literal["producer", "consumer"]] = ["producer", "consumer"]
    used_by = roles if option.role == "connection" else [role for role in roles if role == option.role]
    settings = KafkaSettings.of(SERVERS, {option.name: sample(option)})
    for role in used_by:
        made = settings.librdkafka(role)
        assert option.librdkafka in made
        build = {"producer": confluent.Producer, "consumer": confluent.Consumer}[role]
        group = {"group.id": "g"} if role == "consumer" else {}
        with caplog.at_level(logging.WARNING):
            build({**made, **group}, logger=logging.getLogger("librdkafka")).poll(0)
    assert "CONFWARN" not in caplog.text  # how librdkafka says that it does not use a setting


def test_all_of_them_at_once() -> None:
    settings = KafkaSettings.of(SERVERS, {option.name: sample(option) for option in TRANSLATED})
    confluent.Producer(settings.librdkafka())
    confluent.Consumer({**settings.librdkafka("consumer"), "group.id": "g"})
    assert "linger.ms" not in settings.librdkafka("consumer")
    assert "fetch.min.bytes" not in settings.librdkafka()
    assert settings.librdkafka("connection").items() < settings.librdkafka().items()


@pytest.mark.parametrize("option", [entry for entry in TRANSLATED if entry.rd_range], ids=lambda option: option.name)
def test_the_ranges_of_librdkafka_are_those_of_librdkafka(option: Option) -> None:
    """The ends of the range are taken; what lies outside is refused here, and would be there."""
    assert option.rd_range is not None
    low, high = (int(bound) for bound in option.rd_range)
    role: Literal["producer", "consumer"] = "consumer" if option.role == "consumer" else "producer"
    build = {"producer": confluent.Producer, "consumer": confluent.Consumer}[role]
    group = {"group.id": "g"} if role == "consumer" else {}
    for bound in {max(low, int(option.low)), min(high, int(option.high))}:
        made = KafkaSettings.of(SERVERS, {option.name: bound}).librdkafka(role)
        build({**made, **group})
    if high < option.high:
        with pytest.raises(ConfigError, match=f"{option.name} is {high + 1}, but librdkafka takes {low} to {high}"):
            KafkaSettings.of(SERVERS, {option.name: high + 1}).librdkafka(role)
        with pytest.raises(confluent.KafkaException, match="outside allowed range"):
            build({"bootstrap.servers": SERVERS, option.librdkafka: str(high + 1), **group})


def test_kafka_python_knows_every_option_that_is_translated() -> None:
    known = clients.kafka_python().KafkaAdminClient.DEFAULT_CONFIG
    translated = {option.kafka_python: option for option in OPTIONS.values() if option.kafka_python}
    assert translated.keys() <= known.keys()
    options = {option.name: sample(option) for option in translated.values()}
    made = KafkaSettings.of(SERVERS, {**options, **ALICE}).kafka_python()
    assert made.keys() <= known.keys()
    for name, option in translated.items():
        assert isinstance(made[name], {"whole": int, "switch": bool}.get(option.kind, str)), name


def test_values_that_mean_the_same_by_another_number() -> None:
    options = {"buffer.memory": 33554432, "send.buffer.bytes": -1, "batch.size": 0, "acks": "-1"}
    made = KafkaSettings.of(SERVERS, options).librdkafka()
    assert made["queue.buffering.max.kbytes"] == "32768"
    assert made["socket.send.buffer.bytes"] == "0"
    assert (made["batch.size"], made["acks"]) == ("1", "all")
    assert "send_buffer_bytes" not in KafkaSettings.of(SERVERS, options).kafka_python()


def test_the_level_is_that_of_the_chosen_compression() -> None:
    levels = {"compression.lz4.level": 17, "compression.zstd.level": 4}
    made = KafkaSettings.of(SERVERS, {"compression.type": "lz4", **levels}).librdkafka()
    assert made["compression.level"] == "12"
    confluent.Producer(made)
    assert "compression.level" not in KafkaSettings.of(SERVERS, levels).librdkafka()


# --- Declarations


def test_names_with_and_without_the_prefix_are_the_same() -> None:
    settings = KafkaSettings.of(["one:9092", "two:9093"], {"kafka.linger.ms": 5, "check.crcs": True})
    assert settings == KafkaSettings.of("one:9092, two:9093", {"linger.ms": "5", "kafka.check.crcs": "TRUE"})
    assert settings.spark() == {
        "kafka.bootstrap.servers": "one:9092,two:9093",
        "kafka.linger.ms": "5",
        "kafka.check.crcs": "true",
    }
    assert settings.kafka_python() == {"bootstrap_servers": ["one:9092", "two:9093"]}


@pytest.mark.parametrize("good", ["h:1", "[::1]:9092", "SSL://broker-1.example.com:65535"])
def test_servers(good: str) -> None:
    assert KafkaSettings.of(good).servers == good


@pytest.mark.parametrize(
    "wrong", ["", " , ", "localhost", "h:0", "h:65536", "h:x", "a b:1", 9092, None, [], [1], b"h:1"]
)
def test_wrong_servers(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="'localhost:9092'"):
        KafkaSettings.of(wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger": 5}, "no option 'linger'. did you mean linger.ms"),
        ({"kafka.compresion.type": "lz4"}, "did you mean compression.type"),
        ({"zzz": 1}, "no option 'zzz'. needed one of Kafka's own"),
        ({"linger.ms": "soon"}, "linger.ms is 'soon', needed a whole number"),
        ({"linger.ms": "1.5"}, "linger.ms is '1.5', needed a whole number"),
        ({"linger.ms": -1}, "linger.ms is -1, needed a whole number from 0 to 2147483647"),
        ({"linger.ms": None}, "linger.ms is a NoneType, needed text or a number"),
        ({"check.crcs": "yes"}, "check.crcs is 'yes', needed true or false"),
        ({"compression.type": "zip"}, "compression.type is 'zip', needed one of none, gzip, snappy, lz4, zstd"),
        ({"isolation.level": "serializable"}, "needed one of read_committed, read_uncommitted"),
        ({"linger.ms": 1, "kafka.linger.ms": 1}, "linger.ms is set twice"),
        ({"acks": "1"}, "acks=1 is refused: records could be lost"),
        ({"enable.idempotence": False}, "enable.idempotence=false is refused: a retry would write twice"),
        ({"retries": 0}, "retries=0 is refused"),
        ({"max.in.flight.requests.per.connection": 6}, "connection=6 is refused: brokers remember five"),
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS', needed one of PLAINTEXT, SSL"),
        ({"sasl.username": "a"}, "sasl.username is set, but security.protocol is PLAINTEXT"),
        ({"ssl.key.password": "a", "security.protocol": "SASL_PLAINTEXT"}, "set security.protocol to SSL or SASL_SSL"),
        (SCRAM, "SCRAM-SHA-256 needs a name and a password"),
        ({**SCRAM, "sasl.username": "a"}, "SCRAM-SHA-256 needs a name and a password"),
        ({**ALICE, "sasl.jaas.config": "x"}, "sasl.username and sasl.jaas.config are both set"),
        ({**ALICE, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is GSSAPI, which has no password"),
        ({**SCRAM, "sasl.jaas.config": f"{jaas.PLAIN} required;"}, "SCRAM-SHA-256 needs .*ScramLoginModule"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "x"}, "set ssl.truststore.type to PEM"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "/etc/ca.pem"},
            "ssl.truststore.certificates holds no PEM: .*for a file use ssl.truststore.location",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.password": "x"},
            "ssl.keystore.password is set, but PEM has none",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.key": "x"},
            "ssl.keystore.key is set without ssl.keystore.certificate.chain",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        KafkaSettings.of(SERVERS, options)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_options_say_why(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} is refused: "):
        KafkaSettings.of(SERVERS, {f"kafka.{name}": "x"})


def test_settings_travel_and_do_not_change() -> None:
    settings = KafkaSettings.of(SERVERS, ALICE)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
    with pytest.raises(TypeError):
        settings.options["linger.ms"] = "1"  # type: ignore[index]


# --- Client libraries


def test_a_missing_library_is_told_with_the_command() -> None:
    program = """
        import sys
        sys.modules["confluent_kafka"] = sys.modules["kafka"] = None
        from tallystick.kafka import clients, settings
        from tallystick.errors import MissingExtraError
        for client in (clients.confluent, clients.kafka_python):
            try:
                client()
            except MissingExtraError as error:
                print(error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.count("pip install 'tallystick[kafka]'") == 2
    assert issubclass(MissingExtraError, Exception)
