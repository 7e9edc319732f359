"""Passwords and certificates in Kafka's words, for all three clients, and shown to nobody. No broker is needed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import ConfigError
from tallystick.kafka import clients, jaas
from tallystick.kafka.options import OPTIONS
from tallystick.kafka.settings import KafkaSettings
from tallystick.servers.certificates import Certificates

confluent = clients.confluent()
SERVERS = "127.0.0.1:1"
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
ALICE = {**SCRAM, "sasl.username": "alice", "sasl.password": 'a "b" \\c;'}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make()
    return made


def pem_options(certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca_file),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server_file),
    }


def inline_options(certificates: Certificates) -> dict[str, str]:
    key, *chain = certificates.server_file.read_text().split("-----BEGIN CERTIFICATE-----")
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": certificates.ca_file.read_text().replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key.replace("\n", " "),
        "ssl.keystore.certificate.chain": "".join(f"-----BEGIN CERTIFICATE-----{part}" for part in chain),
    }


# --- Secrets


def test_secrets_are_not_shown(certificates: Certificates) -> None:
    secrets = {
        "sasl.jaas.config": f'{jaas.SCRAM} required username="alice" password="hush";',
        "ssl.key.password": "hush",
    }
    inline = inline_options(certificates) | {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    settings = KafkaSettings.of(SERVERS, {**inline, **secrets})
    for shown in (repr(settings), str(settings), f"{settings}"):
        assert "hush" not in shown
        assert "PRIVATE KEY" not in shown
        assert "…" in shown
    assert "a \\" not in repr(KafkaSettings.of(SERVERS, ALICE))


def test_every_option_that_sounds_secret_is_one() -> None:
    for name, option in OPTIONS.items():
        sounds = any(word in name for word in ("password", "jaas", "keystore.key", "token.secret"))
        assert option.secret == sounds, name


def test_an_error_in_the_login_does_not_show_the_password() -> None:
    for text in ("Module required username=a password=1hush;", 'Module required password="hush', "Module hush"):
        with pytest.raises(ConfigError) as caught:
            jaas.parse(text)
        assert "hush" not in str(caught.value).replace("Module hush", "")


# --- sasl.jaas.config


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('m.M required username="alice" password="s";', {"username": "alice", "password": "s"}),
        ("m.M required username=alice password='s x';", {"username": "alice", "password": "s x"}),
        ('  m.M\n  required\n  a = "b" ; ', {"a": "b"}),
        (r'm.M required p="a\"b\\c\td\101";', {"p": 'a"b\\c\tdA'}),
        ('m.M optional /* no */ a="//x"; // end', {"a": "//x"}),
        ("m.M required;", {}),
        ('m.M required p="für; = 日本";', {"p": "für; = 日本"}),
    ],
)
def test_a_login_as_kafka_reads_it(text: str, found: dict[str, str]) -> None:
    login = jaas.parse(text)
    assert (login.module, login.options) == ("m.M", found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no login module"),
        ("m.M", "no login module and control flag"),
        ('m.M maybe a="b";', "no control flag, needed one of required"),
        ('m.M required a="b"', "no ';' at the end"),
        ("m.M required a=1b;", "needs quotes"),
        ("m.M required a=/etc/x;", "needs quotes"),
        ('m.M required a="b;', "fits nothing"),
        ("m.M required a=;", "no further NAME=VALUE"),
        ('m.M required a="b" c;', "after a=… comes no further NAME=VALUE"),
        ('m.M required a="b"; n.N required;', "more than one login module"),
    ],
)
def test_a_login_that_kafka_would_refuse(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        jaas.parse(text)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_and_password_come_back(name: str, password: str) -> None:
    login = jaas.parse(jaas.written("PLAIN", name, password))
    assert login.options == {"username": name, "password": password}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_is_the_same_written_either_way(mechanism: str) -> None:
    pair = KafkaSettings.of(SERVERS, {**ALICE, "sasl.mechanism": mechanism})
    spark = pair.spark()
    assert "kafka.sasl.username" not in spark
    login = KafkaSettings.of(
        SERVERS,
        {**SCRAM, "sasl.mechanism": mechanism, "sasl.jaas.config": spark["kafka.sasl.jaas.config"]},
    )
    assert login.spark() == spark
    assert login.librdkafka() == pair.librdkafka()
    assert pair.librdkafka()["sasl.password"] == ALICE["sasl.password"]
    confluent.Producer(pair.librdkafka())
    told = pair.kafka_python()
    assert (told["sasl_mechanism"], told["sasl_plain_username"]) == (mechanism, "alice")
    assert told["sasl_plain_password"] == ALICE["sasl.password"]


def test_tokens_and_tickets() -> None:
    login = f'{jaas.OAUTH} required clientId="me" clientSecret="hush" scope="all";'
    url = {"sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1/token"}
    oauth = KafkaSettings.of(
        SERVERS,
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": login, **url},
    )
    assert oauth.librdkafka()["sasl.oauthbearer.client.id"] == "me"
    with pytest.raises(ConfigError, match=r"kafka-python.*cannot fetch tokens"):
        oauth.kafka_python()
    kerberos = KafkaSettings.of(SERVERS, {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "kafka"})
    assert kerberos.librdkafka()["sasl.mechanism"] == "GSSAPI"
    assert kerberos.kafka_python()["sasl_kerberos_service_name"] == "kafka"


# --- TLS


def test_one_pem_file_serves_all_three(certificates: Certificates) -> None:
    settings = KafkaSettings.of(SERVERS, pem_options(certificates))
    made = settings.librdkafka()
    assert made["ssl.key.location"] == made["ssl.certificate.location"] == str(certificates.server_file)
    confluent.Producer(made)
    context = settings.kafka_python()["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) == 1


def test_pem_text_on_one_line(certificates: Certificates) -> None:
    settings = KafkaSettings.of(SERVERS, inline_options(certificates))
    confluent.Producer(settings.librdkafka())
    assert len(settings.kafka_python()["ssl_context"].get_ca_certs()) == 1


def test_no_check_of_the_host_name(certificates: Certificates) -> None:
    options = {**pem_options(certificates), "ssl.endpoint.identification.algorithm": ""}
    settings = KafkaSettings.of(SERVERS, options)
    assert settings.librdkafka()["ssl.endpoint.identification.algorithm"] == "none"
    context = settings.kafka_python()["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert KafkaSettings.of(SERVERS, pem_options(certificates)).kafka_python()["ssl_context"].check_hostname


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def test_a_key_with_a_password(certificates: Certificates, tmp_path: Path) -> None:
    both = str(tmp_path / "key.pem")
    openssl("pkcs8", "-topk8", "-in", str(certificates.server_file), "-out", both, "-passout", "pass:hush")
    with Path(both).open("a") as file:
        file.write(certificates.server_file.read_text().split("-----END PRIVATE KEY-----")[1])
    options = {**pem_options(certificates), "ssl.keystore.location": both}
    settings = KafkaSettings.of(SERVERS, {**options, "ssl.key.password": "hush"})
    confluent.Producer(settings.librdkafka())
    settings.kafka_python()
    with pytest.raises(ConfigError, match=r"ssl.keystore.location cannot be used"):
        KafkaSettings.of(SERVERS, {**options, "ssl.key.password": "wrong"}).kafka_python()
    with pytest.raises(ConfigError, match=r"ssl.key.password if the key is encrypted"):
        KafkaSettings.of(SERVERS, options).kafka_python()


def test_a_file_that_is_not_there(certificates: Certificates) -> None:
    options = {**pem_options(certificates), "ssl.truststore.location": "/no/such.pem"}
    with pytest.raises(ConfigError, match=r"ssl.truststore.location cannot be used \(.*No such file"):
        KafkaSettings.of(SERVERS, options).kafka_python()


def command_in(error: ConfigError) -> str:
    return str(error).split("make a PEM of it with '")[1].split("'")[0]


def test_a_pkcs12_key_store_works_where_it_can_and_the_command_makes_a_pem(
    certificates: Certificates, tmp_path: Path
) -> None:
    store = tmp_path / "client.p12"
    made = ["-in", str(certificates.server_file), "-out", str(store), "-passout", "pass:hush"]
    openssl("pkcs12", "-export", *made)
    options = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store), "ssl.keystore.password": "hush"}
    settings = KafkaSettings.of(SERVERS, {"security.protocol": "SSL", **options})
    confluent.Producer(settings.librdkafka())
    with pytest.raises(ConfigError, match="keystore of type PKCS12, which kafka-python cannot read") as caught:
        settings.kafka_python()
    command = command_in(caught.value)
    subprocess.run(f"{command} -passin pass:hush", shell=True, check=True, capture_output=True, timeout=60)
    pem = {**pem_options(certificates), "ssl.keystore.location": str(tmp_path / "client.pem")}
    confluent.Producer(KafkaSettings.of(SERVERS, pem).librdkafka())
    KafkaSettings.of(SERVERS, pem).kafka_python()


def test_a_java_trust_store_is_refused_and_the_command_makes_a_pem(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    password = ["-storepass", "hushhush"]
    made = [
        "keytool",
        "-importcert",
        "-noprompt",
        "-file",
        str(certificates.ca_file),
        "-keystore",
        str(store),
        *password,
    ]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    settings = KafkaSettings.of(SERVERS, {"security.protocol": "SSL", "ssl.truststore.location": str(store)})
    with pytest.raises(ConfigError, match="truststore of type JKS, which librdkafka cannot read"):
        settings.librdkafka()
    with pytest.raises(ConfigError, match="which kafka-python cannot read") as caught:
        settings.kafka_python()
    command = command_in(caught.value).replace(" >", f" {' '.join(password)} >")
    subprocess.run(command, shell=True, check=True, capture_output=True, timeout=60)
    pem = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "trust.pem")}
    context = KafkaSettings.of(SERVERS, {"security.protocol": "SSL", **pem}).kafka_python()["ssl_context"]
    assert len(context.get_ca_certs()) == 1


def test_a_java_key_store_is_refused_with_both_commands() -> None:
    options = {"security.protocol": "SSL", "ssl.keystore.location": "/etc/client.jks"}
    with pytest.raises(ConfigError, match=r"-destkeystore /etc/client.p12 .*openssl pkcs12 .* -out /etc/client.pem"):
        KafkaSettings.of(SERVERS, options).librdkafka()


def test_what_only_java_understands_is_not_dropped_without_a_word() -> None:
    settings = KafkaSettings.of(SERVERS, {"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.3"})
    assert settings.spark()["kafka.ssl.enabled.protocols"] == "TLSv1.3"
    with pytest.raises(ConfigError, match=r"ssl.enabled.protocols is in Java's words, and librdkafka has others"):
        settings.librdkafka()
