"""An issuer of tokens: its keys, its key set, and tokens that are right or wrong in one thing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://issuer.test"
AUDIENCE = "penstock"


def _segment(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """One with a key that can be replaced."""

    def __init__(self, kid: str = "first", algorithm: str = "ES256") -> None:
        self.rotate(kid, algorithm)

    def rotate(self, kid: str, algorithm: str = "ES256", rsa_bits: int = 2048) -> None:
        """A new key in the place of the old one."""
        self.kid, self.algorithm = kid, algorithm
        self.key: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm == "ES256"
            else rsa.generate_private_key(public_exponent=65537, key_size=rsa_bits)
        )

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key."""
        kind: Any = jwt.algorithms.ECAlgorithm if self.algorithm == "ES256" else jwt.algorithms.RSAAlgorithm
        return {**kind.to_jwk(self.key.public_key(), as_dict=True), "kid": self.kid, "use": "sig"}

    def jwks(self, *others: dict[str, Any]) -> bytes:
        """The key set."""
        return json.dumps({"keys": [*others, self.jwk]}).encode()

    def write_jwks(self, path: Path) -> Path:
        """The key set as a file, in one step."""
        new = path.with_suffix(".new")
        new.write_bytes(self.jwks())
        new.replace(path)
        return path

    def claims(self, subject: str, lifetime_s: float = 3600, **more: Any) -> dict[str, Any]:
        """Right ones; None in `more` leaves one out."""
        now = time.time()
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": int(now), "exp": int(now + lifetime_s)}
        return {name: value for name, value in (said | more).items() if value is not None}

    def token(
        self,
        subject: str = "alice",
        lifetime_s: float = 3600,
        header: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """A token that is signed rightly."""
        return self.signed(self.claims(subject, lifetime_s, **more), header)

    def signed(self, claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        """A token with these claims."""
        said = {"kid": self.kid} | (header or {})
        return jwt.encode(
            claims,
            self.key,
            self.algorithm,
            {name: value for name, value in said.items() if value is not None},
        )

    def unsigned(self, subject: str = "alice", alg: str = "none") -> str:
        """What alg none is."""
        header = {"alg": alg, "typ": "JWT", "kid": self.kid}
        return f"{_segment(header)}.{_segment(self.claims(subject))}."

    def shared_secret(self, subject: str = "alice") -> str:
        """The public key, which everybody has, taken for a shared secret (HS256)."""
        secret = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        signed = ".".join(
            (_segment({"alg": "HS256", "typ": "JWT", "kid": self.kid}), _segment(self.claims(subject)))
        )
        return f"{signed}.{_segment(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
