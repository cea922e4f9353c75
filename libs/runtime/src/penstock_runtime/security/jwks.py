"""Sets of keys (JWKS, RFC 7517) and the signatures of tokens, by PyJWT.

Imported only where tokens count: it brings the package cryptography with it.

A key is used for algorithms of its own type alone, and for the one that it names, if it names one: a token cannot
choose to have a public key taken for a shared secret (RFC 8725, 3.1). Symmetric and private keys in a set are passed
over, as are RSA keys below 2,048 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import cryptography  # noqa: F401 - without it PyJWT knows shared secrets only
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from penstock_core.security.oauthbearer import TokenRefused

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE: Final = {
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}


class BadKeys(ValueError):
    """A document that is no set of keys, or holds none that may be used; the text says why."""


class UnknownKey(TokenRefused):
    """No key at hand is the token's: a newer set may have it."""


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str | None
    algorithms: frozenset[str]
    key: Any


class KeySet:
    """The keys of an issuer."""

    def __init__(self, document: bytes, allowed: frozenset[str]) -> None:
        """Read a JWKS; of its keys those that `allowed` algorithms can use. Raises BadKeys."""
        try:
            read = json.loads(document)
        except (ValueError, RecursionError):
            raise BadKeys("it is not JSON") from None
        listed = read.get("keys") if isinstance(read, dict) else None
        if not isinstance(listed, list):
            raise BadKeys('it is no JWKS: {"keys": [...]}')
        if len(listed) > KEYS_MAX:
            raise BadKeys(f"it has {len(listed)} keys, the most is {KEYS_MAX}")
        found = [_read(each, allowed) for each in listed]
        self._keys: Final = [key for key in found if key is not None]
        if not self._keys:
            raise BadKeys(f"none of its {len(listed)} keys is a public one for {', '.join(sorted(allowed))}")

    def __len__(self) -> int:
        return len(self._keys)

    def claims(self, token: str, header: Mapping[str, object]) -> dict[str, object]:
        """What a token says whose signature is right; `header` is its own. Raises TokenRefused."""
        algorithm, kid = str(header["alg"]), header.get("kid")
        fitting = [k for k in self._keys if algorithm in k.algorithms and (kid is None or k.kid == kid)]
        if not fitting:
            raise UnknownKey(f"no key for kid {kid!r:.60} and alg {algorithm}")
        if kid is None and len(fitting) > 1:
            raise TokenRefused("it names no key (kid), and there are several")
        reader = jwt.PyJWS(algorithms=[algorithm])
        for key in fitting:
            try:
                payload = reader.decode_complete(token, key.key, algorithms=[algorithm])["payload"]
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                raise TokenRefused(f"it cannot be read: {error}") from None
            return _object(payload)
        raise TokenRefused("its signature is wrong")


def header_of(token: str) -> dict[str, Any]:
    """A token's header, which nothing vouches for. Raises TokenRefused."""
    try:
        return jwt.PyJWS().get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise TokenRefused(f"it is no JWT: {error}") from None


def _object(payload: bytes) -> dict[str, object]:
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        raise TokenRefused("its claims are not JSON") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no JSON object")
    return claims


def _read(data: object, allowed: frozenset[str]) -> _Key | None:
    """A key that may be used; None for others."""
    if not isinstance(data, dict) or data.get("use", "sig") != "sig" or "d" in data:
        return None
    operations, kid, named = data.get("key_ops", ["verify"]), data.get("kid"), data.get("alg")
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kind, curve = data.get("kty"), data.get("crv")
    if not isinstance(kid, str | None) or not isinstance(curve, str | None):
        return None
    algorithms = (_RSA if kind == "RSA" else _BY_CURVE.get((str(kind), str(curve)), frozenset())) & allowed
    if named is not None:
        algorithms = frozenset(each for each in algorithms if each == named)
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(data, min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        return None
    return _Key(kid, algorithms, key)
