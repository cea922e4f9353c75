"""SCRAM: the client's side, for our own tools (RFC 5802, RFC 7677).

The password is hashed as it was typed, as Kafka's clients do (`saslprep` says why).
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final

from penstock_core.security.sasl import SaslFailure, encode_saslname
from penstock_core.security.scram import ITERATIONS_MIN, ScramMechanism

ITERATIONS_MAX: Final = 1_000_000
"""A server that asks for more wants to keep the client busy: a second or two of CPU."""

_HEADER: Final = b"n,,"
_SERVER_FIRST: Final = re.compile(
    rb"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[a-zA-Z0-9/+=]+),i=(?P<iterations>[1-9][0-9]{0,9})(?:,.*)?",
    re.DOTALL,
)
_SERVER_FINAL: Final = re.compile(
    rb"(?:v=(?P<verifier>[a-zA-Z0-9/+=]+)|e=(?P<error>[^,=]+))(?:,.*)?", re.DOTALL
)


class ScramClient:
    """One exchange: `first`, `final` with the server's first message, `finish` with its last.

    `nonce` is random and of printable ASCII without comma. All raise SaslFailure.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        nonce: str,
        *,
        iterations_min: int = ITERATIONS_MIN,
        iterations_max: int = ITERATIONS_MAX,
    ) -> None:
        self.mechanism: Final = mechanism
        self._iterations_min = iterations_min
        self._iterations_max = iterations_max
        self._password = password.encode()
        self._nonce = nonce.encode("ascii")
        self._bare = b"n=" + encode_saslname(user).encode() + b",r=" + self._nonce
        self._verifier = b""

    def first(self) -> bytes:
        """The first message."""
        return _HEADER + self._bare

    def final(self, server_first: bytes) -> bytes:
        """The message with the proof. Computes PBKDF2: milliseconds of CPU."""
        read = _SERVER_FIRST.fullmatch(server_first)
        if read is None:
            raise SaslFailure("malformed first message of the server")
        if not read["nonce"].startswith(self._nonce) or read["nonce"] == self._nonce:
            raise SaslFailure("the server's nonce does not continue ours")
        iterations = int(read["iterations"])
        if iterations > self._iterations_max:
            raise SaslFailure(
                f"the server asks for {iterations} iterations, the most is {self._iterations_max}"
            )
        if iterations < self._iterations_min:
            # No server of Kafka's or ours has fewer. An impostor would try passwords out that much faster.
            raise SaslFailure(
                f"the server asks for {iterations} iterations, the least is {self._iterations_min}"
            )
        mechanism = self.mechanism
        salted = mechanism.salted_password(self._password, _decode(read["salt"]), iterations)
        bare = b"c=" + b64encode(_HEADER) + b",r=" + read["nonce"]
        said = b",".join((self._bare, server_first, bare))
        client_key = mechanism.hmac(salted, b"Client Key")
        signature = mechanism.hmac(mechanism.hash(client_key), said)
        self._verifier = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), said)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return bare + b",p=" + b64encode(proof)

    def finish(self, server_final: bytes) -> None:
        """Check that the server knows the credential too; else it may be anybody."""
        read = _SERVER_FINAL.fullmatch(server_final)
        if read is None:
            raise SaslFailure("malformed final message of the server")
        if read["error"] is not None:
            raise SaslFailure(f"the server refused: {read['error'].decode('ascii', 'backslashreplace')}")
        if not self._verifier or not hmac.compare_digest(_decode(read["verifier"]), self._verifier):
            raise SaslFailure("the server does not know the password: it is not the one it says it is")


def _decode(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise SaslFailure("malformed base64") from None
