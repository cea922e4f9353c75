"""Client files: what is read, what goes to Kafka's clients, and what is refused."""

import pytest

from penstock_core.security.client_file import ClientFile, ClientFileError

HERE = "alice.properties"
WHOLE = """
# Who I am
! and where
bootstrap.servers = a.example.com:9092,b.example.com:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=alice
sasl.password= p=a:ss#\\word
ssl.ca.location=/etc/ca.pem
penstock.gateway=a.example.com:9094
penstock.http=https://a.example.com:8080
linger.ms=5
"""
JAVA = """
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="alice" \\
    password="se;cret";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location=/etc/mine.pem
"""


def test_a_file_says_where_and_who() -> None:
    found = ClientFile.parse(WHOLE, HERE)
    assert found.bootstrap == "a.example.com:9092,b.example.com:9092"
    assert (found.security_protocol, found.tls, found.sasl) == ("SASL_SSL", True, True)
    assert (found.mechanism, found.username) == ("SCRAM-SHA-512", "alice")
    assert found.password == "p=a:ss#\\word"
    assert found.ca_file == "/etc/ca.pem"
    assert (found.certificate_file, found.key_file, found.token_file) == (None, None, None)
    assert (found.gateway, found.http) == ("a.example.com:9094", "https://a.example.com:8080")


def test_kafka_clients_get_what_is_theirs() -> None:
    settings = ClientFile.parse(WHOLE, HERE).librdkafka()
    assert settings["linger.ms"] == "5" and settings["sasl.password"] == "p=a:ss#\\word"
    assert not [key for key in settings if key.startswith("penstock.")]


def test_the_names_of_java() -> None:
    found = ClientFile.parse(JAVA, HERE)
    assert (found.username, found.password) == ("alice", "se;cret")
    assert found.ca_file == "/etc/ca.pem"
    assert (found.certificate_file, found.key_file) == ("/etc/mine.pem", "/etc/mine.pem")
    assert found.librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "se;cret",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/mine.pem",
        "ssl.key.location": "/etc/mine.pem",
    }


def test_librdkafka_takes_them() -> None:
    from confluent_kafka import Producer

    for text in (WHOLE, JAVA):
        settings = ClientFile.parse(text, HERE).librdkafka()
        # The files are not there.
        for key in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
            settings.pop(key, None)
        Producer(settings | {"bootstrap.servers": "127.0.0.1:1"})


def test_tokens_and_nothing_at_all() -> None:
    found = ClientFile.parse(
        "security.protocol=sasl_ssl\nsasl.mechanisms=OAUTHBEARER\nsasl.oauthbearer.token.file=/run/token\n",
        HERE,
    )
    assert (found.mechanism, found.token_file) == ("OAUTHBEARER", "/run/token")
    assert (found.username, found.password, found.has_secrets) == (None, None, False)
    assert "sasl.oauthbearer.token.file" not in found.librdkafka()
    empty = ClientFile.parse("", HERE)
    assert (empty.security_protocol, empty.sasl, empty.bootstrap) == ("PLAINTEXT", False, "")


def test_nothing_of_it_is_shown() -> None:
    shown = repr(ClientFile.parse(WHOLE, HERE))
    assert "alice.properties" in shown and "word" not in shown and "SCRAM" not in shown


SCRAM = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hush-hush", "line 1 is no key=value"),
        ("security.protocol=TLS", "is none of PLAINTEXT, SSL"),
        ("sasl.username=alice\nsasl.password=hush-hush", "sasl.username and no security.protocol"),
        ("ssl.ca.location=ca.pem", "ssl.ca.location and no security.protocol"),
        ("security.protocol=PLAINTEXT\nssl.ca.location=ca.pem", "set SSL or SASL_SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism is missing"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "is none of SCRAM-SHA-256"),
        (SCRAM + "sasl.username=alice", "needs sasl.password"),
        (SCRAM + "sasl.password=hush-hush", "needs sasl.username"),
        (SCRAM + 'sasl.jaas.config=X required username="a" password="hush-\\\\hush";', "has a backslash"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER", "needs sasl.oauthbearer.token.file"),
        (
            "security.protocol=SSL\nssl.truststore.location=store.jks",
            "store of type JKS; give ssl.ca.location",
        ),
        ("security.protocol=SSL\nssl.key.location=key.pem", "go together"),
        ("penstock.gatewya=a:1", "penstock.gatewya is unknown"),
        ("security.protocol=\x1b[2J", "\\x1b[2J is none"),
    ],
)
def test_what_is_half_said_is_refused(text: str, says: str) -> None:
    with pytest.raises(ClientFileError) as refused:
        ClientFile.parse(text, HERE)
    message = str(refused.value)
    assert says in message and message.startswith("alice.properties: ")
    assert "hush" not in message and "\n" not in message
