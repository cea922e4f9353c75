"""What a client calls itself in ApiVersions (KIP-511): kept by its connection, for the few that need special care."""

from __future__ import annotations

from typing import Final

from penstock_frontend.listener.connection import Connection

_KEY: Final = "client_software"
_LENGTH_MAX: Final = 200
_RDKAFKA: Final = "rdkafka"


def note_client_software(connection: Connection, name: str, version: str) -> None:
    """Keep name and version of the client's software."""
    connection.state[_KEY] = f"{name} {version}"[:_LENGTH_MAX]


def client_software(connection: Connection) -> str:
    """Name and version, "" of a client that has not said so."""
    noted: str = connection.state.get(_KEY, "")
    return noted


def is_librdkafka(connection: Connection) -> bool:
    """Whether the client is librdkafka or made with it, as far as it says so."""
    return _RDKAFKA in client_software(connection)
