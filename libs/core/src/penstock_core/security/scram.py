"""SCRAM-SHA-256 and SCRAM-SHA-512: the server's side, and what is stored of a password.

Sources: RFC 5802, RFC 7677; Kafka: ScramSaslServer, ScramMessages, ScramControlManager (limits and error codes).
As in Kafka names are ASCII, channel binding is refused, unknown extensions are ignored and the nonce is compared
whole; but librdkafka before 2.6.1, Debian's kcat say, sends its own part twice (librdkafka #4895), which Kafka took
until 3.9 and which is taken here: all of it is checked. Stricter than Kafka: `c=` must repeat the header (RFC 5802,
5.1), and an unknown user is found out at the proof, like a wrong password, with a salt that stays the same.

Written here and not taken from a package: scramp, the one that is kept up, wants salts of at least 12 bytes, which
Kafka's clients choose freely, and loads ssl and asn1crypto for channel bindings that Kafka does not have.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security import sasl
from penstock_core.security.sasl import SaslFailure

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""What a credential may have; Kafka's limits for both mechanisms."""

_SALT_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(IntEnum):
    """The two mechanisms; the values are Kafka's codes (org.apache.kafka.clients.admin.ScramMechanism)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """As SASL calls it."""
        return sasl.SCRAM_SHA_256 if self is ScramMechanism.SHA_256 else sasl.SCRAM_SHA_512

    @property
    def hash_name(self) -> str:
        """As hashlib calls it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """Size of its keys."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    def hmac(self, key: bytes, text: bytes) -> bytes:
        """HMAC (RFC 5802, 2.2)."""
        return hmac.digest(key, text, self.hash_name)

    def hash(self, text: bytes) -> bytes:
        """H (RFC 5802, 2.2)."""
        return hashlib.new(self.hash_name, text).digest()

    def salted_password(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        """Hi (RFC 5802, 2.2): PBKDF2, milliseconds of CPU. Not for an event loop."""
        return hashlib.pbkdf2_hmac(self.hash_name, password, salt, iterations)


MECHANISM_OF: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is stored for a user and a mechanism. It lets nobody sign in, but whoever has it can guess offline."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def credential(
    mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password, which is what AlterUserScramCredentials brings."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    return ScramCredential(
        mechanism,
        salt,
        mechanism.hash(client_key),
        mechanism.hmac(salted_password, b"Server Key"),
        iterations,
    )


def check_alteration(user: str, mechanism: int, iterations: int | None) -> ScramMechanism:
    """What may be asked of a user's credential; a deletion has no iterations.

    Raises UNACCEPTABLE_CREDENTIAL and UNSUPPORTED_SASL_MECHANISM (Kafka: ScramControlManager).
    """
    if not user:
        raise PenstockError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in list(ScramMechanism):
        raise PenstockError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"Unknown SCRAM mechanism {mechanism}: there are {', '.join(MECHANISM_OF)}",
        )
    if iterations is not None and iterations < ITERATIONS_MIN:
        raise PenstockError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too few iterations: {iterations}, the least is {ITERATIONS_MIN}",
        )
    if iterations is not None and iterations > ITERATIONS_MAX:
        raise PenstockError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too many iterations: {iterations}, the most is {ITERATIONS_MAX}",
        )
    return ScramMechanism(mechanism)


def salt_text(random_bits: int) -> bytes:
    """A salt of 130 random bits in the form that Kafka's own tools give it (ScramFormatter.secureRandomBytes)."""
    number, digits = random_bits % (1 << _SALT_BITS), ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.encode()


def false_credential(mechanism: ScramMechanism, cluster_secret: bytes, user: str) -> ScramCredential:
    """What an unknown user seems to have: always the same, and no password fits.

    The salt looks like those of Kafka's tools and ours, the iterations are their default.
    """

    def derived(what: bytes) -> bytes:
        text = what + b"\0" + mechanism.mechanism_name.encode() + b"\0" + user.encode(errors="surrogatepass")
        return mechanism.hmac(cluster_secret, text)

    return ScramCredential(
        mechanism,
        salt_text(int.from_bytes(derived(b"salt"))),
        derived(b"stored key"),
        derived(b"server key"),
        ITERATIONS_MIN,
    )


_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_NONCE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_BASE64: Final = rb"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_CLIENT_FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authzid>" + _NAME + rb"))?,)"
    rb"(?P<bare>n=(?P<name>" + _NAME + rb"),r=(?P<nonce>" + _NONCE + rb")" + _EXTENSIONS + rb")"
)
_CLIENT_FINAL: Final = re.compile(
    rb"(?P<bare>c=(?P<binding>" + _BASE64 + rb"),r=(?P<nonce>" + _NONCE + rb")" + _EXTENSIONS + rb")"
    rb",p=(?P<proof>" + _BASE64 + rb")"
)


class _State(Enum):
    FIRST = 1
    FINAL = 2
    COMPLETE = 3
    FAILED = 4


class ScramServer:
    """One exchange. `nonce` is ours, random and of printable ASCII without comma; a fresh one for each exchange."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        nonce: str,
        find: Callable[[str, ScramMechanism], ScramCredential | None],
        cluster_secret: bytes,
    ) -> None:
        self.mechanism: Final = mechanism
        self.user = ""
        """Who wants to sign in, once the first message was read; who has, once it is complete."""
        self._own_nonce = nonce.encode("ascii")
        self._find = find
        self._secret = cluster_secret
        self._state = _State.FIRST
        self._header = self._nonce = self._said = b""
        self._credential: ScramCredential | None = None
        self._known = False

    @property
    def complete(self) -> bool:
        """Whether the user has signed in."""
        return self._state is _State.COMPLETE

    def evaluate(self, token: bytes) -> bytes:
        """The answer to a client's message. Raises SaslFailure, after which the exchange is over."""
        state, self._state = self._state, _State.FAILED
        if state is _State.FIRST:
            answer = self._first(token)
            self._state = _State.FINAL
        elif state is _State.FINAL:
            answer = self._final(token)
            self._state = _State.COMPLETE
        else:
            raise SaslFailure("a message after the end of the exchange")
        return answer

    def _first(self, token: bytes) -> bytes:
        read = _CLIENT_FIRST.fullmatch(token)
        if read is None:
            binding = token[:2] in (b"p=", b"y,")
            raise SaslFailure("channel binding is not offered" if binding else "malformed first message")
        self.user = sasl.decode_saslname(read["name"].decode("ascii"))
        if read["authzid"] is not None and sasl.decode_saslname(read["authzid"].decode("ascii")) != self.user:
            raise SaslFailure("another authorization id than the user", sasl.OTHER_AUTHZID)
        stored = self._find(self.user, self.mechanism)
        self._known = stored is not None
        # Made for known users too: what the two cost must not differ.
        false = false_credential(self.mechanism, self._secret, self.user)
        self._credential = chosen = false if stored is None else stored
        self._header = read["header"]
        self._nonce = read["nonce"] + self._own_nonce
        answer = b"r=%s,s=%s,i=%d" % (self._nonce, b64encode(chosen.salt), chosen.iterations)
        self._said = read["bare"] + b"," + answer + b","
        return answer

    def _final(self, token: bytes) -> bytes:
        chosen, self._credential = self._credential, None
        read = _CLIENT_FINAL.fullmatch(token)
        if read is None or chosen is None:
            raise SaslFailure("malformed final message")
        doubled = self._nonce.removesuffix(self._own_nonce) + self._nonce
        right_nonce = hmac.compare_digest(read["nonce"], self._nonce)
        if not right_nonce and not hmac.compare_digest(read["nonce"], doubled):
            raise SaslFailure("another nonce than the one given")
        if _decode(read["binding"]) != self._header:
            raise SaslFailure("c= is not the header of the first message")
        proof = _decode(read["proof"])
        said = self._said + read["bare"]
        signature = self.mechanism.hmac(chosen.stored_key, said)
        client_key = bytes(a ^ b for a, b in zip(signature, proof.ljust(len(signature), b"\0"), strict=False))
        right = hmac.compare_digest(self.mechanism.hash(client_key), chosen.stored_key)
        verifier = self.mechanism.hmac(chosen.server_key, said)
        if not right or not self._known or len(proof) != len(signature):
            raise SaslFailure("wrong password" if self._known else "unknown user")
        return b"v=" + b64encode(verifier)


def _decode(text: bytes) -> bytes:
    """Base64 in its one form: bits that belong to no byte must be zero."""
    try:
        data = b64decode(text, validate=True)
    except binascii.Error:  # the pattern lets none through
        raise SaslFailure("malformed base64") from None
    if b64encode(data) != text:
        raise SaslFailure("malformed base64")
    return data
