"""What says who somebody is and is read before anything else: tokens and the keys for them, subjects of certificates,
client files, the first users.
"""

from __future__ import annotations

import base64
import datetime
import hmac
import json
from collections.abc import Iterator
from functools import cache
from typing import Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fuzz.target import Target, expect
from penstock_core.security.bootstrap_users import BootstrapUser, from_text, to_text
from penstock_core.security.client_file import SECRETS, ClientFile, ClientFileError
from penstock_core.security.oauthbearer import TokenRefused
from penstock_core.security.scram import ScramMechanism, credential
from penstock_core.security.session_token import PREFIX, BadSessionToken, SessionClaims, SessionKeys
from penstock_core.security.subject import BadSubject, subject_of
from penstock_runtime.security.jwks import BadKeys, KeySet, header_of

_ALLOWED: Final = frozenset({"ES256", "EdDSA", "RS256"})
_KEYS: Final = SessionKeys({"session-token:1": b"1" * 32, "session-token:2": b"2" * 32, "other": b"x"})
_PASSWORD: Final = "hunter2secret"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- JWTs --------------------------------------------------------------------------------------------


@cache
def _signing_key() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(0xC0FFEE, ec.SECP256R1())


def _public(kid: str | None) -> dict[str, str]:
    made: dict[str, str] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(_signing_key().public_key()))
    return made | ({"kid": kid} if kid else {})


def _jwks(data: bytes) -> None:
    """The issuer's document and a token, with NUL between."""
    document, _, word = data.partition(b"\0")
    keys = KeySet(document, _ALLOWED)
    expect(len(keys) > 0, "a set has keys")
    token = _text(word)
    header = header_of(token)
    if not isinstance(header.get("alg"), str):
        return
    claims = keys.claims(token, header)
    expect(header["alg"] in _ALLOWED, "nothing else counts")
    expect(isinstance(claims, dict), "claims are an object")


def _jwks_seeds() -> Iterator[bytes]:
    claims = {"iss": "issuer", "sub": "user", "exp": 1_100}
    other = json.loads(
        jwt.algorithms.OKPAlgorithm.to_jwk(
            ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32).public_key()
        )
    )
    for kid in (None, "one"):
        headers = {"kid": kid} if kid else None
        token = jwt.encode(claims, _signing_key(), algorithm="ES256", headers=headers)
        for keys in ([_public(kid)], [_public(kid), other | {"kid": "two"}]):
            yield json.dumps({"keys": keys}).encode() + b"\0" + token.encode()


# -- our own tokens ----------------------------------------------------------------------------------


def _session_token(data: bytes) -> None:
    """A byte (whether the MAC is put right) and a token."""
    token = _text(data[1:])
    forged = data[:1] < b"\x80"
    if not forged and token.startswith(PREFIX):
        try:
            said = base64.urlsafe_b64decode(token.removeprefix(PREFIX))[:-32]
            said[21:].decode()  # a gateway gives tokens to users, whose names are text
        except ValueError:
            said = b""
        if said:
            mac = hmac.digest(b"2" * 32, b"penstock session token 1\0" + said, "sha256")
            token = PREFIX + base64.urlsafe_b64encode(said + mac).decode()
    claims = _KEYS.read(token, 1_000)
    expect(claims.expires_at_ms > 1_000, "it has not ended")
    if forged:
        expect(data[1:].isascii() and claims.user == "user", "nobody but us makes one")


def _session_tokens() -> Iterator[bytes]:
    for keys in (_KEYS, SessionKeys({"session-token:1": b"1" * 32})):
        token = keys.issue(SessionClaims("user", 1, 7, 2_000))
        yield b"\0" + token.encode()
        yield b"\xff" + token.encode()


# -- certificates ------------------------------------------------------------------------------------


def _subject(data: bytes) -> None:
    name = subject_of(data)
    expect(name.encode().decode() == name, "a name is text")


def _certificates() -> Iterator[bytes]:
    plain = [(NameOID.COMMON_NAME, "alice"), (NameOID.ORGANIZATION_NAME, 'Ä, "x" + <y>; #z\\')]
    odd = [(x509.ObjectIdentifier("1.2.3.4"), "other"), (NameOID.COMMON_NAME, " #a ")]
    for attributes in ([], plain, odd, plain + odd):
        name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
        day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        made = x509.CertificateBuilder(name, name, _signing_key().public_key(), 5, day, day)
        yield made.sign(_signing_key(), hashes.SHA256()).public_bytes(Encoding.DER)


# -- files -------------------------------------------------------------------------------------------


def _client_file(data: bytes) -> None:
    try:
        read = ClientFile.parse(_text(data), "client.properties")
    except ClientFileError as error:
        said = str(error)
        expect("\n" not in said and "client.properties" in said, "one line that names the file")
        if f"\nsasl.password={_PASSWORD}\n".encode() in data and data.count(_PASSWORD.encode()) == 1:
            expect(_PASSWORD not in said, "no secret is told")
        raise
    shown = repr(read)
    for key in SECRETS & read.properties.keys():
        value = read.properties[key]
        expect(len(value) < 6 or value in read.path or value not in shown, "no secret is shown")
    read.librdkafka()


def _client_files() -> Iterator[bytes]:
    common = "bootstrap.servers=a:1,[::1]:2\n"
    for text in (
        common,
        f"{common}security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\n"
        f"sasl.password={_PASSWORD}\nssl.ca.location=ca.pem\npenstock.gateway=g:1\npenstock.http=http://h:1\n",
        f"{common}security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=x.PlainLoginModule \\\n"
        '  required username="a" \\\n  password="b c";\n# a comment\n! another\n',
        f"{common}security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.file=t\n",
        f"{common}security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=ca.pem\n"
        "ssl.keystore.type=PEM\nssl.keystore.location=k.pem\nssl.key.password=hunter2secret\n",
        f"{common}security.protocol=SASL_SSL\nsasl.password={_PASSWORD}\n",
    ):
        yield text.encode()


def _first_users(data: bytes) -> None:
    users = from_text(_text(data))
    expect(users == from_text(to_text(users)), "what was read is written the same")


def _first_users_seeds() -> Iterator[bytes]:
    made = []
    for mechanism in ScramMechanism:
        salted = mechanism.salted_password(b"pencil", b"0123456789abcdef", 4_096)
        made.append(BootstrapUser("admin", credential(mechanism, b"0123456789abcdef", salted, 4_096)))
    yield to_text(made).encode()
    yield to_text(made[:1]).encode()


TARGETS: Final = [
    Target("sasl.jwks", _jwks, (BadKeys, TokenRefused), _jwks_seeds, share=10, input_bytes_max=1536),
    Target(
        "sasl.session_token",
        _session_token,
        (BadSessionToken,),
        _session_tokens,
        share=5,
        input_bytes_max=512,
    ),
    Target("certificate.subject", _subject, (BadSubject,), _certificates, share=15, input_bytes_max=1024),
    Target(
        "words.client_file",
        _client_file,
        (ClientFileError,),
        _client_files,
        share=10,
        input_bytes_max=1024,
        words=(
            b"security.protocol=",
            b"sasl.mechanism=",
            b"SASL_SSL",
            b"\\\n",
            b"penstock.",
            b"ssl.",
            b"username=",
        ),
    ),
    Target(
        "words.bootstrap_users",
        _first_users,
        (ValueError,),
        _first_users_seeds,
        share=5,
        input_bytes_max=1024,
    ),
]
