"""Tokens of the native API: who has signed in, until when, relying on which credential. Pure.

A token is given by one gateway and good at every other: it is a MAC by a key that all have from the metadata, and
nothing is kept of it. The controllers make a new key from time to time (`state.session_keys`); the two newest count, so
a token lives at most as long as a key stays the second one. It dies with the credential: another password is another
version of it.

    pst1. base64url(key number, mechanism, version, expiry, user, HMAC-SHA-256 of all that)
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple

PREFIX: Final = "pst1."
"""No JWT begins so."""
KEY_NAME: Final = "session-token:"
"""Of the cluster's secrets; a number follows, the highest is the newest."""
KEYS_KEPT: Final = 2
KEY_LIFETIME_MS: Final = 60 * 60 * 1000
"""Until the controllers make the next key."""
LIFETIME_MS_MAX: Final = 30 * 60 * 1000
LENGTH_MAX: Final = 4096

_HEAD: Final = struct.Struct(">IBQQ")
_MAC_BYTES: Final = 32


class SessionClaims(NamedTuple):
    """What a token says."""

    user: str
    mechanism: int
    """Of the credential, in Kafka's code."""
    version: int
    """Of the credential."""
    expires_at_ms: int
    """By the wall clock."""


class BadSessionToken(Exception):
    """A token that does not count; the text is for our own log."""


class NoKey(Exception):
    """The metadata has no key yet, so nobody gets a token."""


def key_number(name: str) -> int | None:
    """The number of a secret that is a key of ours; None for others."""
    digits = name.removeprefix(KEY_NAME)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else None


class SessionKeys:
    """The keys among the cluster's secrets."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        found = {key_number(name): value for name, value in secrets.items()}
        self._keys = {number: value for number, value in found.items() if number is not None}

    def issue(self, claims: SessionClaims) -> str:
        """A token by the newest key. Raises NoKey."""
        if not self._keys:
            raise NoKey("the cluster has no key for tokens yet; try again in a moment")
        number = max(self._keys)
        said = _HEAD.pack(number, claims.mechanism, claims.version, claims.expires_at_ms)
        said += claims.user.encode()
        return PREFIX + urlsafe_b64encode(said + _mac(self._keys[number], said)).decode()

    def read(self, token: str, now_ms: int) -> SessionClaims:
        """What a token says that one of us gave, and that has not ended. Raises BadSessionToken."""
        if len(token) > LENGTH_MAX or not token.startswith(PREFIX):
            raise BadSessionToken("it is no token of ours")
        try:
            # Strictly: one token has one spelling.
            data = urlsafe_b64decode(token.removeprefix(PREFIX).encode("ascii"))
            if PREFIX + urlsafe_b64encode(data).decode() != token:
                raise BadSessionToken("it is no base64url")
        except (binascii.Error, ValueError):
            raise BadSessionToken("it is no base64url") from None
        if len(data) < _HEAD.size + _MAC_BYTES:
            raise BadSessionToken("it is too short")
        said, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        number, mechanism, version, expires_at_ms = _HEAD.unpack_from(said)
        key = self._keys.get(number)
        if key is None:
            raise BadSessionToken("its key is not known here, or no more")
        if not hmac.compare_digest(_mac(key, said), mac):
            raise BadSessionToken("its signature is wrong")
        if now_ms >= expires_at_ms:
            raise BadSessionToken("it has expired")
        return SessionClaims(said[_HEAD.size :].decode(), mechanism, version, expires_at_ms)


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, b"penstock session token 1\0" + said, "sha256")
