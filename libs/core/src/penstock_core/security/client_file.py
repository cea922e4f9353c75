"""Client files: where a cluster is and how to sign in there, in the names of Kafka's clients.

One `key=value` a line, `#` or `!` begins a comment. The names are librdkafka's; Java's are read where they mean the
same: `sasl.jaas.config` with a name and a password, stores of type PEM. What begins with `penstock.` is ours, and
what else Kafka's clients know is passed on to them.

Rules: a value is taken as it stands, backslashes too, as librdkafka does; only `sasl.jaas.config` may go on after a
backslash at a line's end. What is half said (a user's name without `security.protocol`, say) is refused, for nothing
is to be sent in clear by mistake. Files are read by `penstock_core.process.credentials`, which looks at their modes.

Source of the names: librdkafka's CONFIGURATION.md, and SslConfigs and SaslConfigs of Apache Kafka 4.3 (KIP-651: PEM).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock_core.security.sasl import MECHANISMS, OAUTHBEARER
from penstock_core.text import harmless

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SECRETS: Final = frozenset(
    {
        *("sasl.password", "sasl.jaas.config", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config"),
        *("ssl.key.password", "ssl.key.pem", "ssl.keystore.key", "ssl.keystore.password"),
        "ssl.truststore.password",
    }
)
"""Keys whose values nobody else may read."""

KEYS: Final = SECRETS | {
    *("bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username"),
    *("sasl.oauthbearer.token.file", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    *("ssl.truststore.location", "ssl.truststore.type", "ssl.keystore.location", "ssl.keystore.type"),
    *("penstock.gateway", "penstock.http"),
}
"""Keys that mean something here; others are passed on."""

_OURS: Final = "penstock."
_OURS_KNOWN: Final = ("penstock.gateway", "penstock.http")
_TOKEN_FILE: Final = "sasl.oauthbearer.token.file"  # noqa: S105 (the name of a setting)
_JAVA_ONLY: Final = frozenset(
    {
        *("sasl.jaas.config", "sasl.client.callback.handler.class"),
        *("ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password"),
        *("ssl.truststore.certificates", "ssl.keystore.type", "ssl.keystore.key"),
        *("ssl.keystore.certificate.chain", "ssl.enabled.protocols", "ssl.protocol", "ssl.provider"),
    }
)
"""Keys that librdkafka refuses."""
_PAIR: Final = re.compile(r"(?P<key>[^\s=:]+)\s*[=:]\s*(?P<value>.*)", re.DOTALL)
_JAAS: Final = re.compile(r'(?:^|\s)(?P<name>username|password)\s*=\s*"(?P<value>[^"]*)"')


class ClientFileError(ValueError):
    """A client file that cannot be used: one line that names the file and the mend, and no value of it."""


@dataclass(frozen=True)
class ClientFile:
    """What a client file says. Paths are as written: relative ones count from the working directory
    (`load_client_file` looks beside the file too).

    Nothing of it is shown by `repr` but the path.
    """

    path: str
    properties: Mapping[str, str] = field(repr=False)
    """Every key, as written."""
    bootstrap: str = field(repr=False)
    """HOST:PORT,... of Kafka listeners, or empty."""
    security_protocol: str = field(repr=False)
    """One of PROTOCOLS."""
    mechanism: str | None = field(repr=False)
    """One of `sasl.MECHANISMS`; None without SASL."""
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    token_file: str | None = field(repr=False)
    """With a JWT in it, which may be replaced at any time."""
    ca_file: str | None = field(repr=False)
    """None: the CAs that the system trusts."""
    certificate_file: str | None = field(repr=False)
    key_file: str | None = field(repr=False)
    key_password: str | None = field(repr=False)
    gateway: str = field(repr=False)
    """HOST:PORT,... of gateways' gRPC ports, or empty."""
    http: str = field(repr=False)
    """Base URL of a gateway's HTTP port, or empty."""

    @property
    def tls(self) -> bool:
        """Whether connections are TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether connections sign in."""
        return self.mechanism is not None

    @property
    def has_secrets(self) -> bool:
        """Whether somebody who reads it could use it."""
        return not SECRETS.isdisjoint(self.properties)

    @classmethod
    def parse(cls, text: str, path: str) -> ClientFile:
        """Read a client file's text; `path` is for what is said of it. Raises ClientFileError."""
        return _Reading(text, path).result()

    def librdkafka(self) -> dict[str, str]:
        """The settings of a client made with librdkafka: what is not for it left out, Java's names in its own.

        The token of a token file is not in it: that is given by a callback of the client (`token_file`).
        """
        settings = {
            key: value
            for key, value in self.properties.items()
            if not key.startswith(_OURS)
            and key not in _JAVA_ONLY
            and not key.startswith("sasl.login.")
            and key != _TOKEN_FILE
        }
        settings.pop("sasl.mechanisms", None)
        if settings.get("ssl.keystore.location") and self.properties.get("ssl.keystore.type"):
            del settings["ssl.keystore.location"]
        told = {
            "security.protocol": self.security_protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
        }
        return settings | {key: value for key, value in told.items() if value is not None}


class _Reading:
    """One file while it is read."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._read = dict(self._pairs(text))

    def result(self) -> ClientFile:
        self._check_ours()
        protocol = self._protocol()
        mechanism = self._mechanism() if protocol.startswith("SASL_") else None
        username, password = self._password(mechanism)
        token_file = self._get(_TOKEN_FILE)
        if mechanism == OAUTHBEARER and token_file is None:
            raise self._bad(f"OAUTHBEARER needs {_TOKEN_FILE}=PATH of a file with a token")
        certificate, key = self._certificate()
        found = ClientFile(
            path=self._path,
            properties=MappingProxyType(self._read),
            bootstrap=self._get("bootstrap.servers") or "",
            security_protocol=protocol,
            mechanism=mechanism,
            username=username,
            password=password,
            token_file=token_file,
            ca_file=self._get("ssl.ca.location") or self._store("truststore"),
            certificate_file=certificate,
            key_file=key,
            key_password=self._get("ssl.key.password"),
            gateway=self._get("penstock.gateway") or "",
            http=self._get("penstock.http") or "",
        )
        if not found.tls and (found.ca_file or found.certificate_file):
            raise self._bad(f"has files for TLS and security.protocol={protocol}: set SSL or SASL_SSL")
        return found

    def _pairs(self, text: str) -> Iterable[tuple[str, str]]:
        lines = iter(enumerate(text.splitlines(), 1))
        for number, line in lines:
            stripped = line.strip()
            if not stripped or stripped[0] in "#!":
                continue
            pair = _PAIR.fullmatch(stripped)
            if pair is None:
                # Not the line itself: it may be a password.
                raise self._bad(f"line {number} is no key=value; begin a comment with #")
            key, value = pair["key"], pair["value"]
            while key == "sasl.jaas.config" and value.endswith("\\"):
                _, more = next(lines, (0, ""))
                value = value[:-1].rstrip() + " " + more.strip()
            yield key, value

    def _check_ours(self) -> None:
        for key in self._read:
            if key.startswith(_OURS) and key not in _OURS_KNOWN:
                raise self._bad(f"{harmless(key)} is unknown; there are {' and '.join(_OURS_KNOWN)}")

    def _protocol(self) -> str:
        said = self._get("security.protocol")
        if said is None:
            hints = [key for key in self._read if key.startswith(("sasl.", "ssl."))]
            if hints:
                raise self._bad(
                    f"has {harmless(hints[0])} and no security.protocol; set it to SASL_SSL or SSL"
                )
            return "PLAINTEXT"
        protocol = said.upper()
        if protocol not in PROTOCOLS:
            raise self._bad(f"security.protocol={harmless(said)} is none of {', '.join(PROTOCOLS)}")
        return protocol

    def _mechanism(self) -> str:
        said = self._get("sasl.mechanism") or self._get("sasl.mechanisms")
        if said is None:
            raise self._bad("sasl.mechanism is missing; set it to SCRAM-SHA-512")
        mechanism = said.upper()
        if mechanism not in MECHANISMS:
            raise self._bad(f"sasl.mechanism={harmless(said)} is none of {', '.join(MECHANISMS)}")
        return mechanism

    def _password(self, mechanism: str | None) -> tuple[str | None, str | None]:
        username, password = self._get("sasl.username"), self._get("sasl.password")
        jaas = self._get("sasl.jaas.config")
        if jaas is not None and username is None and password is None and mechanism != OAUTHBEARER:
            if "\\" in jaas:
                raise self._bad(
                    "sasl.jaas.config has a backslash; give sasl.username and sasl.password instead"
                )
            told = {each["name"]: each["value"] for each in _JAAS.finditer(jaas)}
            username, password = told.get("username"), told.get("password")
        if mechanism in (None, OAUTHBEARER):
            return None, None
        for key, value in (("sasl.username", username), ("sasl.password", password)):
            if not value:
                raise self._bad(f"{mechanism} needs {key}=...")
        return username, password

    def _certificate(self) -> tuple[str | None, str | None]:
        """Paths of the client's certificate and of its key: Java has both in one file."""
        certificate, key = self._get("ssl.certificate.location"), self._get("ssl.key.location")
        if certificate is None and key is None:
            certificate = key = self._store("keystore")
        if (certificate is None) != (key is None):
            raise self._bad("ssl.certificate.location and ssl.key.location go together: give both")
        return certificate, key

    def _store(self, which: str) -> str | None:
        place = self._get(f"ssl.{which}.location")
        if place is None:
            return None
        kind = self._get(f"ssl.{which}.type") or "JKS"
        if kind.upper() != "PEM":
            ours = (
                "ssl.ca.location"
                if which == "truststore"
                else "ssl.certificate.location and ssl.key.location"
            )
            raise self._bad(
                f"ssl.{which}.location is a store of type {harmless(kind)}; give {ours} in PEM, "
                f"or ssl.{which}.type=PEM with a file of that form"
            )
        return place

    def _get(self, key: str) -> str | None:
        """A value, None where there is none or an empty one."""
        return self._read.get(key) or None

    def _bad(self, what: str) -> ClientFileError:
        return ClientFileError(f"{self._path}: {what}")
