"""OAUTHBEARER: what is read, how an exchange ends, and every claim that can be wrong."""

from typing import Any

import pytest

from penstock_core.security.oauthbearer import (
    ClaimsPolicy,
    OAuthBearerServer,
    TokenIdentity,
    TokenRefused,
    challenge,
    parse,
)
from penstock_core.security.sasl import OTHER_AUTHZID, SaslFailure

NOW_S = 1_800_000_000.0
POLICY = ClaimsPolicy("https://issuer", frozenset({"penstock", "kafka"}))
HEADER = {"alg": "RS256", "kid": "1"}
CLAIMS: dict[str, Any] = {
    "iss": "https://issuer",
    "aud": "penstock",
    "sub": "alice",
    "iat": NOW_S - 10,
    "exp": NOW_S + 300,
}


def test_a_message_is_read() -> None:
    read = parse(b"n,a=al=2Cice,\x01auth=Bearer abc.def-_~+/==\x01traceId=x y\x01\x01")
    assert (read.token, read.authzid, read.extensions) == ("abc.def-_~+/==", "al,ice", {"traceId": "x y"})
    assert "abc" not in repr(read)
    assert parse(b"n,,\x01auth=BEARER  t\x01\x01").token == "t"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer a\x01k=\x01\x01",
        b"n,,\x01other=Bearer a\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer \xc3\xa9\x01\x01",
        b"n,,\x01auth=Bearer a\x01\x01\n",
    ],
)
def test_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(SaslFailure) as caught:
        parse(message)
    assert caught.value.client_text is None


def test_a_token_that_claims_all_counts() -> None:
    assert POLICY.check(HEADER, CLAIMS, NOW_S) == TokenIdentity("alice", int((NOW_S + 330) * 1000))
    other = ClaimsPolicy("https://issuer", frozenset({"kafka"}), principal_claim="client_id")
    claims = {**CLAIMS, "aud": ["x", "kafka"], "client_id": "job 7"}
    assert other.check(HEADER, claims, NOW_S).name == "job 7"


@pytest.mark.parametrize(
    ("claim", "value", "why"),
    [
        ("exp", None, "exp"),
        ("exp", "soon", "exp"),
        ("exp", True, "exp"),
        ("exp", float("nan"), "exp"),
        ("exp", 1e300, "exp"),
        pytest.param("exp", 10**400, "exp", id="exp, a whole number beyond floats"),
        ("exp", -1, "exp"),
        ("exp", NOW_S - 30, "30 s ago"),
        ("iat", None, "iat"),
        ("iat", NOW_S + 31, "iat"),
        ("nbf", NOW_S + 31, "nbf"),
        ("nbf", "x", "nbf"),
        ("iss", None, "iss"),
        ("iss", "https://issuer/", "iss"),
        ("iss", ["https://issuer"], "iss"),
        ("aud", None, "aud"),
        ("aud", [], "aud"),
        ("aud", "penstocks", "aud"),
        ("aud", ["penstock", 5], "aud"),
        ("aud", {"penstock": 1}, "aud"),
        ("sub", None, "sub"),
        ("sub", "", "sub"),
        ("sub", 7, "sub"),
        ("sub", "a\x1b[2J", "sub"),
        ("sub", "a" * 256, "sub"),
    ],
)
def test_a_token_with_any_claim_wrong_is_refused(claim: str, value: object, why: str) -> None:
    claims = {**CLAIMS, claim: value}
    if value is None:
        del claims[claim]
    with pytest.raises(TokenRefused, match=why):
        POLICY.check(HEADER, claims, NOW_S)


def test_the_leeway_counts_on_both_sides() -> None:
    POLICY.check(HEADER, {**CLAIMS, "exp": NOW_S - 29, "iat": NOW_S + 29, "nbf": NOW_S + 29}, NOW_S)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "rs256"},
        {"alg": ["RS256"]},
        {"alg": "RS256", "crit": []},
    ],
)
def test_headers_that_are_refused(header: dict[str, object]) -> None:
    with pytest.raises(TokenRefused):
        POLICY.check(header, CLAIMS, NOW_S)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"algorithms": frozenset({"RS256", "HS256"})}, "HS256"),
        ({"algorithms": frozenset({"none"})}, "none"),
        ({"algorithms": frozenset()}, "algorithms"),
        ({"issuer": ""}, "issuer"),
        ({"audiences": frozenset()}, "audiences"),
        ({"principal_claim": ""}, "principal claim"),
    ],
)
def test_policies_that_would_be_unsafe(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClaimsPolicy(**{"issuer": "i", "audiences": frozenset("a"), **changed})


def verify(token: str) -> TokenIdentity:
    if token != "good":
        raise TokenRefused("not good")
    return TokenIdentity("alice", 5)


def test_a_good_token_ends_the_exchange() -> None:
    server = OAuthBearerServer()
    assert server.evaluate(b"n,a=alice,\x01auth=Bearer good\x01\x01", verify) == (
        b"",
        TokenIdentity("alice", 5),
    )
    assert (server.complete, server.user) == (True, "alice")
    with pytest.raises(SaslFailure, match="after the end"):
        server.evaluate(b"n,,\x01auth=Bearer good\x01\x01", verify)


def test_a_bad_token_is_challenged_and_fails_with_the_same_words() -> None:
    server = OAuthBearerServer()
    said, identity = server.evaluate(b"n,,\x01auth=Bearer bad\x01\x01", verify)
    assert (said, identity, server.complete) == (b'{"status":"invalid_token"}', None, False)
    with pytest.raises(SaslFailure) as caught:
        server.evaluate(b"\x01", verify)
    assert caught.value.client_text == '{"status":"invalid_token"}'


def test_after_a_bad_token_a_good_one_comes_too_late() -> None:
    server = OAuthBearerServer()
    server.evaluate(b"n,,\x01auth=Bearer bad\x01\x01", verify)
    with pytest.raises(SaslFailure, match="something else"):
        server.evaluate(b"n,,\x01auth=Bearer good\x01\x01", verify)
    assert not server.complete


def test_another_authorization_id_is_refused() -> None:
    server = OAuthBearerServer()
    with pytest.raises(SaslFailure) as caught:
        server.evaluate(b"n,a=admin,\x01auth=Bearer good\x01\x01", verify)
    assert caught.value.client_text == OTHER_AUTHZID
    assert not server.complete


def test_a_challenge_is_json_whatever_it_says() -> None:
    assert challenge("insufficient_scope", 'a"b') == b'{"status":"insufficient_scope", "scope":"a\\"b"}'
