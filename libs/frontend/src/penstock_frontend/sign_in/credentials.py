"""What users prove themselves by, from the newest metadata, and which connections rely on it.

A user that is deleted, or gets another password, has signed in nowhere any more: connections that relied on the
credential of before are closed (ours; Kafka lets them go on).
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import SIGN_IN_KEY, CredentialKey
from penstock_core.security.scram import ScramCredential, ScramMechanism
from penstock_frontend.listener.connection import Connection

CLOSE_MS_MAX: Final = 3_000
"""How long a connection whose credential or certificate is gone may go on with what it has been answered."""


class Reliance(NamedTuple):
    """On which credential somebody relies, at which version of it."""

    key: CredentialKey
    version: int


class Credentials:
    """Those of the newest metadata."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        # Below metadata.level 2 there is no secret of the cluster, nor a user.
        self._own_secret = os.urandom(32)

    @property
    def secret(self) -> bytes:
        """From which users that there are not have their salts."""
        return self._image().security.secrets.get(SIGN_IN_KEY, self._own_secret)

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """A user's credential for a mechanism."""
        found = self._image().security.credentials.get(CredentialKey(user, mechanism))
        if found is None:
            return None
        return ScramCredential(mechanism, found.salt, found.stored_key, found.server_key, found.iterations)

    def version(self, key: CredentialKey) -> int | None:
        """Of a credential; None when there is none."""
        found = self._image().security.credentials.get(key)
        return None if found is None else found.version


class SignedIn:
    """Connections whose clients have signed in, by the credential that they relied on."""

    def __init__(self) -> None:
        self._of: dict[Connection, Reliance] = {}
        self._by_key: defaultdict[CredentialKey, set[Connection]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, connection: Connection, reliance: Reliance) -> None:
        """A client has signed in, for the first time or again."""
        if connection not in self._of:
            connection.on_closed(lambda: self._remove(connection))
        else:
            self._by_key[self._of[connection].key].discard(connection)
        if not connection.closed:
            self._of[connection] = reliance
            self._by_key[reliance.key].add(connection)

    def _remove(self, connection: Connection) -> None:
        reliance = self._of.pop(connection, None)
        if reliance is None:
            return
        left = self._by_key[reliance.key]
        left.discard(connection)
        if not left:
            del self._by_key[reliance.key]

    def on_metadata(self, old: MetadataImage, new: MetadataImage) -> None:
        """Close connections whose credential is another one now, or none."""
        credentials = new.security.credentials
        if old.security.credentials is credentials:
            return
        for key, connections in list(self._by_key.items()):
            found = credentials.get(key)
            for connection in list(connections):
                if found is None or found.version != self._of[connection].version:
                    end_soon(connection, "its user was deleted, or has another password")


def end_soon(connection: Connection, reason: str) -> None:
    """Close it after the answers at hand, within CLOSE_MS_MAX."""
    connection.close_after_responses(reason)
    # A Fetch may wait for longer.
    if not connection.closed:
        timer = asyncio.get_running_loop().call_later(CLOSE_MS_MAX / 1000, connection.abort, reason)
        connection.on_closed(timer.cancel)
