"""By what stock clients come in: passwords of a client file, tokens that are renewed while they run, certificates.

Each knows what to tell each client, in that client's own names.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiokafka.abc
import confluent_kafka
import kafka.net.sasl.oauth
from cryptography.hazmat.primitives import serialization

from support.java import JavaDriver
from support.secure import ListenerFiles
from support.stock_clients import LIBRARY, config_of
from support.tokens import AUDIENCE, ISSUER, Issuer

TOKEN_LIFETIME_S = 12
"""Clients of Java and of librdkafka come for another one after four fifths of it."""
TOKEN_FILE_EVERY_S = 2.0
OAUTHBEARER = "OAUTHBEARER"


class Credentials(ABC):
    """By what all clients of a run come in."""

    @abstractmethod
    def config(self, client: str) -> dict[str, Any]:
        """What that client is told, but for where the cluster is."""


class Passwords(Credentials):
    """The admin's, by one mechanism, from the files that `local up --secure` has written."""

    def __init__(self, file: Path, java_file: Path, mechanism: str) -> None:
        self._file, self._java_file, self._mechanism = file, java_file, mechanism

    def config(self, client: str) -> dict[str, Any]:
        return config_of(client, self._file, self._java_file, self._mechanism)


class Tokens(Credentials):
    """A new token for whoever asks, none of which lives long.

    kcat asks the issuer's endpoint (OIDC), with the librdkafka of confluent-kafka's wheel: Debian's knows no OIDC.
    Java reads a file that is replaced all the time, by a JVM of its own: it has to be told at its start which file
    it may read. The others ask a function.
    """

    def __init__(self, issuer: Issuer, subject: str, ca: Path, endpoint: str, file: Path) -> None:
        self._issuer, self._subject, self._ca, self._endpoint = issuer, subject, ca, endpoint
        self._file = file
        self._jvm: JavaDriver | None = None
        self.asked = 0
        """How many tokens were given out."""

    def token(self) -> str:
        """Another one."""
        self.asked += 1
        return self._issuer.token(self._subject, TOKEN_LIFETIME_S)

    def config(self, client: str) -> dict[str, Any]:
        if client == "java":
            return self._java()
        if client in ("confluent-kafka", "kcat"):
            common: dict[str, Any] = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": OAUTHBEARER,
                "ssl.ca.location": str(self._ca),
                "broker.address.family": "v4",
            }
            if client == "confluent-kafka":
                return common | {"oauth_cb": lambda _: (self.token(), time.time() + TOKEN_LIFETIME_S)}
            return common | {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": self._subject,
                "sasl.oauthbearer.client.secret": "of no use",
                "sasl.oauthbearer.token.endpoint.url": self._endpoint,
                LIBRARY: str(librdkafka_of_the_wheel()),
            }
        own: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": OAUTHBEARER}
        if client == "kafka-python":
            provider: Any = _KafkaPythonProvider(self)
            return own | {"ssl_cafile": str(self._ca), "sasl_oauth_token_provider": provider}
        context = ssl.create_default_context(cafile=str(self._ca))
        return own | {"ssl_context": context, "sasl_oauth_token_provider": _AiokafkaProvider(self)}

    def _java(self) -> dict[str, Any]:
        url = f"file://{self._file}"
        if self._jvm is None:
            allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
            self._jvm = JavaDriver(options=(f"{allowed}.urls={url}", f"{allowed}.files={self._file}"))
        package = "org.apache.kafka.common.security.oauthbearer"
        return {
            "driver": self._jvm,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._ca),
            "sasl.mechanism": OAUTHBEARER,
            "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": f"{package}.FileJwtRetriever",
            "sasl.oauthbearer.token.endpoint.url": url,
        }

    def close(self) -> None:
        """End the JVM."""
        if self._jvm is not None:
            self._jvm.close()


class Certificates(Credentials):
    """A certificate of the user."""

    def __init__(self, files: ListenerFiles, name: str) -> None:
        self._ca = files.ca
        self._cert, self._key = files.client(name)
        self._store = files.directory / f"{name}-store.pem"
        self._store.touch(0o600)
        # Java takes keys in this form alone.
        key = serialization.load_pem_private_key(self._key.read_bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._store.write_bytes(key + self._cert.read_bytes())

    def config(self, client: str) -> dict[str, Any]:
        if client == "java":
            return {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._ca),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._store),
            }
        if client in ("confluent-kafka", "kcat"):
            return {
                "security.protocol": "SSL",
                "ssl.ca.location": str(self._ca),
                "ssl.certificate.location": str(self._cert),
                "ssl.key.location": str(self._key),
                "broker.address.family": "v4",
            }
        if client == "kafka-python":
            return {
                "security_protocol": "SSL",
                "ssl_cafile": str(self._ca),
                "ssl_certfile": str(self._cert),
                "ssl_keyfile": str(self._key),
            }
        context = ssl.create_default_context(cafile=str(self._ca))
        context.load_cert_chain(self._cert, self._key)
        return {"security_protocol": "SSL", "ssl_context": context}


class _KafkaPythonProvider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def token(self) -> str:
        return self._tokens.token()


class _AiokafkaProvider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        return self._tokens.token()


def librdkafka_of_the_wheel() -> Path:
    """The library that confluent-kafka brings along."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (found,) = folder.glob("librdkafka-*.so*")
    return found


@contextmanager
def renewed_tokens(issuer: Issuer, subject: str, ca: Path, directory: Path) -> Iterator[Tokens]:
    """Tokens with an endpoint and a file for those who want one."""
    directory.mkdir()
    file = directory / "token"

    class Endpoint(BaseHTTPRequestHandler):
        """RFC 6749, 4.4: a token for a client's id and secret, which are not looked at."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told = {
                "access_token": tokens.token(),
                "token_type": "Bearer",
                "expires_in": TOKEN_LIFETIME_S,
            }
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not to the terminal."""

    def replace() -> None:
        while True:
            new = file.with_suffix(".new")
            new.write_text(tokens.token())
            new.replace(file)
            written.set()
            if over.wait(TOKEN_FILE_EVERY_S):
                return

    written, over = threading.Event(), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        tokens = Tokens(issuer, subject, ca, f"http://127.0.0.1:{server.server_address[1]}/token", file)
        threads = [threading.Thread(target=replace), threading.Thread(target=server.serve_forever)]
        for thread in threads:
            thread.start()
        try:
            assert written.wait(60)
            yield tokens
        finally:
            tokens.close()
            over.set()
            server.shutdown()
            for thread in threads:
                thread.join()


def oauth_table(jwks: Path) -> str:
    """The table `oauth` of a process that takes such tokens."""
    return json.dumps({"issuer": ISSUER, "audiences": [AUDIENCE], "jwks": str(jwks)})
