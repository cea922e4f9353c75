"""What SASL mechanisms have in common: their names, and how they fail."""

from __future__ import annotations

from typing import Final

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"

MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)
"""Those that there are."""

OTHER_AUTHZID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""Kafka's words, which clients know."""


class SaslFailure(Exception):
    """An exchange has failed.

    `reason` is for our own log and audit. The client is told `client_text` if there is one: only what it knows
    already, for whoever reads it may be guessing passwords.
    """

    def __init__(self, reason: str, client_text: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.client_text = client_text


def decode_saslname(text: str) -> str:
    """The name that a saslname stands for: `=2C` is a comma, `=3D` an equals sign (RFC 5802, 5.1).

    Raises SaslFailure for any other `=`.
    """
    name = text.replace("=2C", ",")
    if "=" in name.replace("=3D", ""):
        raise SaslFailure("a saslname with = that stands for nothing")
    return name.replace("=3D", "=")


def encode_saslname(name: str) -> str:
    """The saslname of a name."""
    return name.replace("=", "=3D").replace(",", "=2C")
