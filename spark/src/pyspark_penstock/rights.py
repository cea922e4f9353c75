"""Who has come to a gateway, and which right they lack: words for errors."""

from __future__ import annotations

from pathlib import Path

from penstock_core.process.credentials import load_client_file
from penstock_core.security.client_file import ClientFileError

TOPIC_AUTHORIZATION_FAILED = 29
"""Kafka's error code (org.apache.kafka.common.protocol.Errors)."""


def user_of(credentials_file: str) -> str:
    """The principal where the file names it; a token's and a certificate's are the gateway's to tell."""
    if not credentials_file:
        return "who comes without credentialsFile"
    try:
        name = load_client_file(Path(credentials_file)).username
    except ClientFileError:
        name = None
    return f"{f'User {name}' if name else 'the user'} of credentialsFile {credentials_file}"


def needs(credentials_file: str, right: str) -> str:
    return f"{user_of(credentials_file)} needs the right {right}"
