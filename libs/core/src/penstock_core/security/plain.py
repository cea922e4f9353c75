"""PLAIN on the users of SCRAM: what a client says, what has to be derived of it, and what is remembered.

Sources: RFC 4616; Kafka: PlainSaslServer, whose texts clients know.
A password is right when the key that PBKDF2 makes of it is the stored one. That takes milliseconds, so it is not
done here: `begin` says what to derive, the caller does it in a thread, and `finish` decides. An unknown user
costs as much as others, within some milliseconds which the delay of a failure hides, and hears the same words.
What was right is remembered for a minute, as a keyed hash.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock_core.security import sasl
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.scram import ScramCredential, ScramMechanism, false_credential

MEMO_LIFETIME_MS: Final = 60_000
MEMO_ENTRIES_MAX: Final = 4_096

_WRONG: Final = "Authentication failed: Invalid username or password"


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """What a client says."""

    authzid: str
    user: str
    password: str = field(repr=False)


def parse(token: bytes) -> PlainLogin:
    """Read a client's message: authorization id, user and password, with NUL between. Raises SaslFailure."""
    try:
        words = token.decode().split("\0", 3)
    except UnicodeDecodeError:
        raise SaslFailure("PLAIN message is not UTF-8") from None
    if len(words) != 3:
        text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(words)}"
        raise SaslFailure(text, text)
    login = PlainLogin(*words)
    for what, value in (("username", login.user), ("password", login.password)):
        if not value:
            text = f"Authentication failed: {what} not specified"
            raise SaslFailure(text, text)
    return login


class PlainMemo:
    """Passwords that were right a short while ago, as HMACs by a key that is random for each process.

    The stored key goes into the hash, so a changed credential is another entry. Wrong passwords are not
    remembered: their number is bounded by nobody, and login limits make them dear.
    """

    def __init__(
        self, key: bytes, lifetime_ms: int = MEMO_LIFETIME_MS, entries_max: int = MEMO_ENTRIES_MAX
    ) -> None:
        self._key = key
        self._lifetime_ms = lifetime_ms
        self._entries_max = entries_max
        self._until_ms: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    def knows(self, login: PlainLogin, credential: ScramCredential, now_ms: int) -> bool:
        """Whether that password was right for that credential less than the lifetime ago."""
        until_ms = self._until_ms.get(self._hash(login, credential))
        return until_ms is not None and now_ms < until_ms

    def remember(self, login: PlainLogin, credential: ScramCredential, now_ms: int) -> None:
        """The password is right."""
        hashed = self._hash(login, credential)
        self._until_ms.pop(hashed, None)
        while self._until_ms:  # the oldest stand first
            oldest = next(iter(self._until_ms))
            if self._until_ms[oldest] > now_ms and len(self._until_ms) < self._entries_max:
                break
            del self._until_ms[oldest]
        self._until_ms[hashed] = now_ms + self._lifetime_ms

    def _hash(self, login: PlainLogin, credential: ScramCredential) -> bytes:
        # NUL occurs in neither, so the parts cannot be shifted.
        text = login.user.encode() + b"\0" + login.password.encode() + b"\0" + credential.stored_key
        return hmac.digest(self._key, text, "sha256")


@dataclass(frozen=True, slots=True)
class Derivation:
    """What to derive, and what the result is compared with."""

    login: PlainLogin
    credential: ScramCredential
    known: bool

    def derive(self) -> bytes:
        """PBKDF2: 1.6 ms (SHA-256, 4,096 iterations) to 13 ms (SHA-512, 16,384) of CPU, without the GIL."""
        credential = self.credential
        return credential.mechanism.salted_password(
            self.login.password.encode(), credential.salt, credential.iterations
        )


class PlainServer:
    """One exchange: `begin`, and `finish` if that has something to derive. Both raise SaslFailure."""

    def __init__(
        self,
        find: Callable[[str, ScramMechanism], ScramCredential | None],
        cluster_secret: bytes,
        memo: PlainMemo,
    ) -> None:
        self.user = ""
        """Who wants to sign in; who has, once it is complete."""
        self.complete = False
        self._find = find
        self._secret = cluster_secret
        self._memo = memo

    def begin(self, token: bytes, now_ms: int) -> Derivation | None:
        """Read the client's message. None: the password was right a moment ago, and the user has signed in.

        Of a user with two credentials the one for SHA-512 counts.
        """
        login = parse(token)
        self.user = login.user
        # Made for known users too, and remembered for none: what the two cost must not differ.
        false = false_credential(ScramMechanism.SHA_512, self._secret, login.user)
        by_sha_256 = self._find(login.user, ScramMechanism.SHA_256)
        stored = self._find(login.user, ScramMechanism.SHA_512) or by_sha_256
        if self._memo.knows(login, stored or false, now_ms) and stored is not None:
            self._complete(login)
            return None
        return Derivation(login, stored or false, known=stored is not None)

    def finish(self, derivation: Derivation, salted_password: bytes, now_ms: int) -> None:
        """Decide, with what was derived; the client is then answered with an empty token."""
        stored, mechanism = derivation.credential, derivation.credential.mechanism
        stored_key = mechanism.hash(mechanism.hmac(salted_password, b"Client Key"))
        if not hmac.compare_digest(stored_key, stored.stored_key) or not derivation.known:
            raise SaslFailure("wrong password" if derivation.known else "unknown user", _WRONG)
        self._memo.remember(derivation.login, stored, now_ms)
        self._complete(derivation.login)

    def _complete(self, login: PlainLogin) -> None:
        # After the password, as in Kafka.
        if login.authzid not in ("", login.user):
            raise SaslFailure("another authorization id than the user", sasl.OTHER_AUTHZID)
        self.complete = True
