"""Tokens: each way to be wrong, keys that change, keys that cannot be had, and what is loaded for all that."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError
from structlog.testing import capture_logs

import penstock_runtime.security
from penstock_core.security.oauthbearer import NotVerifiable, TokenRefused
from penstock_runtime.addresses import StartupError
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import get_log
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.security import token_validator
from penstock_runtime.security.jwks import BadKeys, KeySet
from penstock_runtime.security.jwks_source import BYTES_MAX, FileSource, NotRead, UrlSource
from penstock_runtime.security.token_validator import TokenValidator, open_token_validator
from support.tokens import AUDIENCE, ISSUER, Issuer

ALLOWED = frozenset({"RS256", "ES256"})


class Source:
    """What a test says."""

    look_again_s = 3600.0

    def __init__(self) -> None:
        self.document: bytes | None = None
        self.reads = 0

    def read(self) -> bytes | None:
        self.reads += 1
        if self.document is None:
            raise NotRead("nobody answers")
        return self.document


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def settings(**more: Any) -> OauthSettings:
    return OauthSettings(**{"issuer": ISSUER, "audiences": (AUDIENCE,), "jwks": "/dev/null", **more})


class House:
    """A validator of an issuer's tokens."""

    def __init__(self, issuer: Issuer, **more: Any) -> None:
        self.source, self.clock = Source(), Clock()
        self.source.document = issuer.jwks()
        self.validator = TokenValidator(settings(**more), self.source, get_log(), self.clock)

    def name(self, token: str) -> str:
        return asyncio.run(self.validator.verify(token)).name

    def why_not(self, token: str) -> str:
        with pytest.raises(TokenRefused) as caught:
            self.name(token)
        return str(caught.value)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_right_token_counts_until_it_ends(algorithm: str) -> None:
    issuer = Issuer("k", algorithm)
    house = House(issuer)
    before_s = int(time.time())
    identity = asyncio.run(house.validator.verify(issuer.token("alice", 60)))
    assert identity.name == "alice"
    assert before_s + 90 <= identity.expires_at_ms / 1000 <= time.time() + 90  # with the leeway
    assert (house.validator.accepted, house.validator.refused) == (1, 0)


WRONG: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "expired": (lambda i: i.token(lifetime_s=-60), "exp was"),
    "exp missing": (lambda i: i.token(exp=None), "exp is missing"),
    "iat missing": (lambda i: i.token(iat=None), "iat is missing"),
    "issued in the future": (lambda i: i.token(iat=time.time() + 600), "iat is"),
    "not yet": (lambda i: i.token(nbf=time.time() + 600), "nbf is ahead"),
    "another issuer": (lambda i: i.token(iss="https://issuer.test/"), "iss is not"),
    "issuer missing": (lambda i: i.token(iss=None), "iss is not"),
    "another audience": (lambda i: i.token(aud="other"), "aud has none"),
    "audience missing": (lambda i: i.token(aud=None), "aud has none"),
    "nobody": (lambda i: i.token(sub=None), "sub is no name"),
    "a name that is none": (lambda i: i.token(""), "sub is no name"),
    "alg none": (lambda i: i.unsigned(), "alg 'none' is not allowed"),
    "alg NONE": (lambda i: i.unsigned(alg="NoNe"), "alg 'NoNe' is not allowed"),
    "alg RS256 without a signature": (lambda i: i.unsigned(alg="ES256"), "signature is wrong"),
    "alg HS256 by the public key": (lambda i: i.shared_secret(), "alg 'HS256' is not allowed"),
    "alg of another key": (lambda i: i.unsigned(alg="RS256"), "no key for kid 'first' and alg RS256"),
    "unknown key": (lambda i: i.token(header={"kid": "other"}), "no key for kid 'other'"),
    "another's key": (lambda _: Issuer().token(), "signature is wrong"),
    "one that demands what nobody knows": (lambda i: i.token(header={"crit": ["exp"]}), "it is no JWT|crit"),
    "no token": (lambda _: "abc", "it is no JWT"),
    "five parts": (lambda i: i.token() + ".a.b", "no JWT"),
    "too long": (lambda i: i.token(more="x" * 20_000), "the most is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_token_is_refused(issuer: Issuer, case: str) -> None:
    house = House(issuer)
    make, why = WRONG[case]
    with pytest.raises(TokenRefused, match=why):
        house.name(make(issuer))
    assert (house.validator.accepted, house.validator.refused) == (0, 1)
    assert house.name(issuer.token()) == "alice"


def test_a_token_whose_claims_were_changed_is_refused(issuer: Issuer) -> None:
    mine, theirs = issuer.token("mallory").split("."), issuer.token("admin").split(".")
    assert "signature is wrong" in House(issuer).why_not(".".join((mine[0], theirs[1], mine[2])))


def test_an_embedded_key_is_not_looked_at(issuer: Issuer) -> None:
    mallory = Issuer(issuer.kid)
    forged = mallory.token(header={"jwk": mallory.jwk, "jku": "https://mallory.test/jwks"})
    assert "signature is wrong" in House(issuer).why_not(forged)


def test_deep_nesting_is_refused(issuer: Issuer) -> None:
    deep = issuer.token(header={"x": json.loads("[" * 900 + "]" * 900)})
    assert House(issuer).name(deep) == "alice"  # what can be read is
    header = "W1tb" * 3000  # [[[[...
    assert "no JWT" in House(issuer).why_not(f"{header}.e30.AA")


def test_without_a_kid_the_only_key_counts(issuer: Issuer) -> None:
    token = issuer.token(header={"kid": None})
    assert House(issuer).name(token) == "alice"
    house = House(issuer)
    house.source.document = issuer.jwks(Issuer("second").jwk)
    assert "names no key" in house.why_not(token)


def test_an_unknown_key_has_the_keys_read_again_but_not_at_each_token() -> None:
    issuer = Issuer("first")
    house = House(issuer)
    assert house.name(issuer.token()) == "alice"
    old = issuer.token()
    issuer.rotate("second")
    assert "no key for kid 'second'" in house.why_not(issuer.token())
    house.source.document = issuer.jwks()
    reads = house.source.reads
    for _ in range(5):
        assert "no key" in house.why_not(issuer.token())
    assert house.source.reads == reads
    house.clock.ms += token_validator.UNKNOWN_KEY_MS
    assert house.name(issuer.token()) == "alice"
    assert house.source.reads == reads + 1
    assert "no key for kid 'first'" in house.why_not(old)


def test_tokens_that_come_together_wait_for_one_look(issuer: Issuer) -> None:
    house = House(issuer)

    async def scenario() -> None:
        names = await asyncio.gather(*(house.validator.verify(issuer.token(f"u{i}")) for i in range(10)))
        assert [each.name for each in names] == [f"u{i}" for i in range(10)]

    asyncio.run(scenario())
    assert house.source.reads == 1


def test_without_keys_no_token_counts_and_one_line_says_so(issuer: Issuer) -> None:
    house = House(issuer)
    house.source.document = None
    with capture_logs() as lines:
        for _ in range(3):
            assert "there are no keys of the issuer: nobody answers" in house.why_not(issuer.token())
            house.clock.ms += token_validator.UNKNOWN_KEY_MS
        (line,) = lines
        assert line["event"] == "the keys of tokens cannot be read; no token counts until they can"
        assert (line["log_level"], line["reason"]) == ("warning", "nobody answers")
        house.source.document = issuer.jwks()
        assert house.name(issuer.token()) == "alice"
        assert lines[1]["event"] == "keys of tokens are read"


def test_of_a_key_that_may_be_among_those_that_cannot_be_read_nobody_can_say_that_it_is_wrong() -> None:
    issuer = Issuer("first")
    house = House(issuer)

    def judged(token: str) -> bool:
        with pytest.raises(TokenRefused) as refused:
            house.name(token)
        return not isinstance(refused.value, NotVerifiable)

    house.source.document = None
    assert not judged(issuer.token())
    house.source.document = issuer.jwks()
    house.clock.ms += token_validator.UNKNOWN_KEY_MS
    assert house.name(issuer.token()) == "alice"
    expired, foreign = issuer.token(lifetime_s=-60), Issuer("first").token()
    issuer.rotate("second")
    assert judged(issuer.token())
    house.source.document = None
    house.clock.ms += token_validator.UNKNOWN_KEY_MS
    assert not judged(issuer.token())
    assert judged(expired)
    assert judged(foreign)


def test_the_last_good_keys_count_for_a_bounded_time(issuer: Issuer) -> None:
    house = House(issuer, jwks_stale_ms=60_000)
    assert house.name(issuer.token()) == "alice"
    house.source.document = b"{}"
    house.clock.ms += 59_000
    with capture_logs() as lines:
        asyncio.run(house.validator._read())
        assert house.name(issuer.token()) == "alice"
        house.clock.ms += 2_000
        assert "there are no keys of the issuer: it is no JWKS" in house.why_not(issuer.token())
        house.clock.ms += token_validator.UNKNOWN_KEY_MS
        assert "there are no keys" in house.why_not(issuer.token())
    assert [line["event"].partition("; ")[2] for line in lines] == [
        "those of before count for 1000 ms more",
        "no token counts until they can",
    ]


def _key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no JWKS"),
        (b'{"keys": 5}', "no JWKS"),
        (_key_set(), "none of its 0 keys"),
        (_key_set(*[{"kty": "oct"}] * 101), "the most is 100"),
        (_key_set({"kty": "oct", "k": "AAAA", "kid": "1"}), "none of its 1 keys"),
        (_key_set({**Issuer().jwk, "use": "enc"}), "none"),
        (_key_set({**Issuer().jwk, "key_ops": ["sign"]}), "none"),
        (_key_set({**Issuer().jwk, "alg": "HS256"}), "none"),
        (_key_set({**Issuer().jwk, "alg": "ES384"}), "none"),
        (_key_set({**Issuer().jwk, "d": "AAAA"}), "none"),
        (_key_set({**Issuer().jwk, "x": "AAAA"}), "none"),
        (_key_set({**Issuer().jwk, "kid": 5}), "none"),
    ],
)
def test_key_sets_that_are_none(document: bytes, why: str) -> None:
    with pytest.raises(BadKeys, match=why):
        KeySet(document, ALLOWED)


def test_small_rsa_keys_are_passed_over(issuer: Issuer) -> None:
    weak = Issuer("weak", "RS256")
    weak.key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    assert len(KeySet(issuer.jwks(weak.jwk), ALLOWED)) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithms": ("HS256",)}, "HS256 are not among"),
        ({"algorithms": ("none",)}, "none are not among"),
        ({"audiences": ()}, "audiences"),
        ({"issuer": ""}, "at least 1"),
        ({"jwks": ""}, "is empty"),
        ({"jwks": "http://issuer.test/jwks"}, "https only"),
        ({"jwks": "https:///jwks"}, "https only"),
        ({"jwks": "file:///jwks"}, "https only"),
        ({"jwks": "https://me:secret@issuer.test/"}, "without"),
        ({"jwks_ca": "/ca.pem"}, "does nothing"),
        ({"unknown": 1}, "xtra"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        settings(**more)


# Files and URLs


def test_a_file_is_read_when_it_changes(tmp_path: Path, issuer: Issuer) -> None:
    path = issuer.write_jwks(tmp_path / "jwks.json")
    source = FileSource(path)
    assert source.read() == issuer.jwks()
    assert source.read() is None
    issuer.write_jwks(path)
    assert source.read() == issuer.jwks()
    path.write_bytes(b"x" * (BYTES_MAX + 1))
    with pytest.raises(NotRead, match="larger than"):
        source.read()
    path.unlink()
    with pytest.raises(NotRead, match="No such file"):
        source.read()


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code, body, headers = self.server.answer  # type: ignore[attr-defined]
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    ca, path = trustme.CA(), tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return ca, path


@pytest.fixture
def server(authority: tuple[trustme.CA, Path]) -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as it:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority[0].issue_cert("127.0.0.1").configure_cert(context)
        it.socket = context.wrap_socket(it.socket, server_side=True)
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        try:
            yield it
        finally:
            it.shutdown()
            thread.join()


def test_keys_come_by_https_from_whom_the_ca_knows_and_from_nobody_else(
    server: http.server.ThreadingHTTPServer,
    authority: tuple[trustme.CA, Path],
    tmp_path: Path,
    issuer: Issuer,
) -> None:
    url = f"https://127.0.0.1:{server.server_port}/jwks"
    source = UrlSource(url, authority[1], 60)
    server.answer = (200, issuer.jwks(), {})  # type: ignore[attr-defined]
    assert source.read() == issuer.jwks()
    with pytest.raises(NotRead, match=r"certificate is refused.*look at jwks_ca"):
        UrlSource(url, None, 60).read()
    server.answer = (404, b"", {})  # type: ignore[attr-defined]
    with pytest.raises(NotRead, match="the server answers 404"):
        source.read()
    server.answer = (302, b"", {"Location": url})  # type: ignore[attr-defined]
    with pytest.raises(NotRead, match="the server answers 302"):
        source.read()
    server.answer = (200, b"x" * (BYTES_MAX + 1), {})  # type: ignore[attr-defined]
    with pytest.raises(NotRead, match="larger than"):
        source.read()
    with pytest.raises(NotRead, match="No such file"):
        UrlSource(url, tmp_path / "none.pem", 60).read()


def test_keys_are_fetched_in_the_background_and_again(
    server: http.server.ThreadingHTTPServer, authority: tuple[trustme.CA, Path]
) -> None:
    issuer, answers = Issuer("first"), server
    answers.answer = (503, b"", {})  # type: ignore[attr-defined]
    url = f"https://127.0.0.1:{server.server_port}/jwks"

    async def scenario() -> None:
        life = Lifecycle("test")
        validator = open_token_validator(
            settings(jwks=url, jwks_ca=authority[1], jwks_refresh_ms=1_000), life
        )
        assert validator is not None
        validator.start(life)
        validator.start(life)
        with pytest.raises(TokenRefused, match="no keys of the issuer: the server answers 503"):
            await validator.verify(issuer.token())
        answers.answer = (200, issuer.jwks(), {})  # type: ignore[attr-defined]
        await _eventually(lambda: validator.keys is not None)
        assert (await validator.verify(issuer.token())).name == "alice"
        issuer.rotate("second")
        answers.answer = (200, issuer.jwks(), {})  # type: ignore[attr-defined]
        await _eventually(lambda: b"second" in _kids(validator))
        assert (await validator.verify(issuer.token())).name == "alice"
        await life.end_all()

    asyncio.run(scenario())


def _kids(validator: TokenValidator) -> set[bytes]:
    return set() if validator.keys is None else {str(k.kid).encode() for k in validator.keys._keys}


async def _eventually(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not met():  # noqa: ASYNC110 - the validator tells nobody
            await asyncio.sleep(0.05)


def test_a_server_that_is_not_there_is_said_in_a_line() -> None:
    with pytest.raises(NotRead, match="refused"):
        UrlSource("https://127.0.0.1:1/jwks", None, 60).read()


# In a process


def opened(more: OauthSettings | None) -> TokenValidator | None:
    async def scenario() -> TokenValidator | None:
        life = Lifecycle("test")
        made = open_token_validator(more, life)
        assert open_token_validator(more, life) is made
        if made is not None:
            assert life.registry.get_sample_value("penstock_oauth_keys") == 1
        return made

    return asyncio.run(scenario())


def test_a_process_has_one_and_a_bad_file_ends_its_start(tmp_path: Path, issuer: Issuer) -> None:
    assert opened(None) is None
    path = tmp_path / "jwks.json"
    with pytest.raises(StartupError, match=r"oauth.jwks = .*: No such file.*; give the issuer's JWKS"):
        opened(settings(jwks=str(path)))
    path.write_bytes(b"{}")
    with pytest.raises(StartupError, match=r"oauth.jwks = .*: it is no JWKS"):
        opened(settings(jwks=str(path)))
    issuer.write_jwks(path)
    assert opened(settings(jwks=str(path))) is not None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.delitem(sys.modules, "penstock_runtime.security.jwks")
    monkeypatch.delattr(penstock_runtime.security, "jwks")
    with pytest.raises(StartupError, match=r"oauth needs the package jwt: install penstock-runtime\[oauth\]"):
        opened(settings(jwks="https://issuer.test/"))


LOADED = """
import sys
from {role} import ROLE
print([name for name in ("jwt", "cryptography") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "role", ["penstock_gateway.role", "penstock_storage_node.role", "penstock_controller.role"]
)
def test_a_role_loads_no_crypto_package_by_itself(role: str) -> None:
    said = subprocess.run([sys.executable, "-c", LOADED.format(role=role)], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("[]\n", "")
