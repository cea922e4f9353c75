"""Which request is allowed when: tables after Kafka's SaslServerAuthenticator, KafkaChannel and SocketServer."""

import random

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.security.principal import Principal, user
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.sasl_session import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Close,
    Goes,
    Reply,
    SaslSession,
    Stage,
)

PRODUCE, METADATA = 0, 3
MECHANISMS = ("SCRAM-SHA-256", "PLAIN")
ALICE = user("alice")


def session(max_reauth_ms: int | None = None) -> SaslSession:
    return SaslSession(MECHANISMS, max_reauth_ms, 0)


def sign_in(
    one: SaslSession,
    now_ms: int = 0,
    *,
    mechanism: str = "PLAIN",
    version: int = 1,
    principal: Principal = ALICE,
    credential_lifetime_ms: int | None = None,
) -> Reply | Close:
    """SaslHandshake and one token."""
    assert one.receive(SASL_HANDSHAKE, now_ms) is Goes.HANDSHAKE
    assert one.handshake(mechanism, version).error == ErrorCode.NONE
    goes = one.receive_token(now_ms) if one.expects_raw_token else one.receive(SASL_AUTHENTICATE, now_ms)
    if goes is not Goes.TOKEN:
        assert not isinstance(goes, Goes)
        return goes
    return one.succeeded(b"done", principal, now_ms, credential_lifetime_ms)


# What has happened; then, for each request that follows, what becomes of it.
BEFORE = {
    "nothing": [],
    "ApiVersions": [API_VERSIONS],
    "ApiVersions that failed": [-API_VERSIONS],
    "SaslHandshake v1": [SASL_HANDSHAKE],
    "signed in": [SASL_HANDSHAKE, SASL_AUTHENTICATE],
}
CLOSE = "close"
TABLE = [
    ("nothing", API_VERSIONS, Goes.API_VERSIONS),
    ("nothing", SASL_HANDSHAKE, Goes.HANDSHAKE),
    ("nothing", SASL_AUTHENTICATE, CLOSE),
    ("nothing", METADATA, CLOSE),
    ("nothing", PRODUCE, CLOSE),
    ("nothing", 9_999, CLOSE),
    ("ApiVersions", API_VERSIONS, CLOSE),
    ("ApiVersions", SASL_HANDSHAKE, Goes.HANDSHAKE),
    ("ApiVersions", SASL_AUTHENTICATE, CLOSE),
    ("ApiVersions", METADATA, CLOSE),
    ("ApiVersions that failed", API_VERSIONS, Goes.API_VERSIONS),
    ("ApiVersions that failed", SASL_HANDSHAKE, Goes.HANDSHAKE),
    ("ApiVersions that failed", METADATA, CLOSE),
    ("SaslHandshake v1", SASL_AUTHENTICATE, Goes.TOKEN),
    ("SaslHandshake v1", SASL_HANDSHAKE, ErrorCode.ILLEGAL_SASL_STATE),
    ("SaslHandshake v1", API_VERSIONS, ErrorCode.ILLEGAL_SASL_STATE),
    ("SaslHandshake v1", METADATA, ErrorCode.ILLEGAL_SASL_STATE),
    ("signed in", METADATA, Goes.HANDLER),
    ("signed in", PRODUCE, Goes.HANDLER),
    ("signed in", API_VERSIONS, Goes.HANDLER),
    ("signed in", 9_999, Goes.HANDLER),
    ("signed in", SASL_HANDSHAKE, ErrorCode.ILLEGAL_SASL_STATE),
    ("signed in", SASL_AUTHENTICATE, ErrorCode.ILLEGAL_SASL_STATE),
]


@pytest.mark.parametrize(("before", "api_key", "expected"), TABLE)
def test_the_order_of_requests(before: str, api_key: int, expected: Goes | ErrorCode | str) -> None:
    one = session()
    for happened in BEFORE[before]:
        assert isinstance(one.receive(abs(happened), 0), Goes)
        if abs(happened) == API_VERSIONS:
            one.versions_answered(in_full=happened > 0)
        elif happened == SASL_HANDSHAKE:
            one.handshake("PLAIN", 1)
        else:
            one.succeeded(b"", ALICE, 0)
    signed_in = one.stage is Stage.COMPLETE
    became = one.receive(api_key, 0)
    if expected is CLOSE:
        assert isinstance(became, Close)
        assert became.delay_ms == 100
    elif isinstance(expected, ErrorCode):
        assert isinstance(became, Reply)
        assert (became.error, became.close) == (expected, not signed_in)
    else:
        assert became is expected
    if expected is CLOSE or (isinstance(expected, ErrorCode) and not signed_in):
        assert one.stage is Stage.CLOSED
        assert isinstance(one.receive(SASL_HANDSHAKE, 0), Close)


def test_an_unknown_mechanism_is_answered_with_the_list_and_ends_it() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    assert one.handshake("GSSAPI", 1) == Reply(
        ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=MECHANISMS, close=True, delay_ms=100
    )
    assert one.stage is Stage.CLOSED


def test_a_whole_exchange_in_requests() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    assert one.handshake("SCRAM-SHA-256", 1) == Reply(mechanisms=MECHANISMS)
    assert not one.expects_raw_token
    assert one.receive(SASL_AUTHENTICATE, 1) is Goes.TOKEN
    assert one.challenged(b"salt") == Reply(token=b"salt")
    assert one.receive(SASL_AUTHENTICATE, 2) is Goes.TOKEN
    assert one.succeeded(b"v", ALICE, 2) == Reply(token=b"v")
    assert (one.principal, one.mechanism, one.expires_at_ms) == (ALICE, "SCRAM-SHA-256", None)
    assert not one.overdue(10**9)


def test_a_whole_exchange_in_raw_tokens() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    one.handshake("SCRAM-SHA-256", 0)
    assert [one.expects_raw_token] == [True]
    assert one.receive_token(1) is Goes.TOKEN
    assert one.challenged(b"salt") == Reply(token=b"salt", raw=True)
    assert one.receive_token(1) is Goes.TOKEN
    assert one.succeeded(b"v", ALICE, 1) == Reply(token=b"v", raw=True)
    assert [one.expects_raw_token] == [False]
    assert one.receive(METADATA, 2) is Goes.HANDLER


def test_a_failure_is_told_late_and_without_the_reason() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    one.handshake("PLAIN", 1)
    assert one.failed(SaslFailure("unknown user")) == Reply(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN",
        close=True,
        delay_ms=100,
    )
    assert isinstance(one.receive(SASL_AUTHENTICATE, 0), Close)


def test_kafkas_own_words_are_passed_on() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    one.handshake("PLAIN", 1)
    said = one.failed(SaslFailure("for the log", "for the client"))
    assert isinstance(said, Reply)
    assert said.message == "for the client"


def test_a_failure_among_raw_tokens_closes() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    one.handshake("PLAIN", 0)
    failed = one.failed(SaslFailure("x"))
    assert isinstance(failed, Close)
    assert failed.delay_ms == 100
    assert not one.expects_raw_token


def test_signing_in_has_ten_seconds_in_all() -> None:
    one = session()
    assert one.receive(API_VERSIONS, 9_000) is Goes.API_VERSIONS
    one.versions_answered(in_full=True)
    assert one.receive(SASL_HANDSHAKE, 9_999) is Goes.HANDSHAKE
    one.handshake("PLAIN", 1)
    assert one.overdue(10_000)
    assert isinstance(one.receive(SASL_AUTHENTICATE, 10_000), Close)
    raw = session()
    raw.receive(SASL_HANDSHAKE, 0)
    raw.handshake("PLAIN", 0)
    assert isinstance(raw.receive_token(10_000), Close)


@pytest.mark.parametrize(
    ("max_reauth_ms", "credential_ms", "lifetime_ms", "expires_at_ms"),
    [
        (None, None, 0, None),
        (0, None, 0, None),
        (5_000, None, 5_000, 5_100),
        (None, 700, 700, 800),
        (0, 700, 700, 800),
        (5_000, 700, 700, 800),
        (500, 700, 500, 600),
        (None, -3, 0, 100),
        (500, -3, 0, 100),
    ],
)
def test_how_long_a_session_lasts(
    max_reauth_ms: int | None, credential_ms: int | None, lifetime_ms: int, expires_at_ms: int | None
) -> None:
    one = session(max_reauth_ms)
    signed_in = sign_in(one, 100, credential_lifetime_ms=credential_ms)
    assert signed_in == Reply(token=b"done", lifetime_ms=lifetime_ms)
    assert one.expires_at_ms == expires_at_ms


def test_an_expired_session_closes_at_the_first_request_and_not_before() -> None:
    one = session(5_000)
    sign_in(one)
    assert one.receive(METADATA, 5_000) is Goes.HANDLER
    assert one.receive(METADATA, 5_001) == Close("the session has expired and was not renewed", 0)


def test_an_expired_session_may_still_be_renewed() -> None:
    one = session(5_000)
    sign_in(one)
    assert sign_in(one, 7_000) == Reply(token=b"done", lifetime_ms=5_000)
    assert one.receive(METADATA, 12_000) is Goes.HANDLER
    assert isinstance(one.receive(METADATA, 12_001), Close)


def test_only_the_exchange_is_allowed_while_signing_in_again() -> None:
    one = session(5_000)
    sign_in(one)
    one.receive(SASL_HANDSHAKE, 10)
    one.handshake("PLAIN", 1)
    assert one.reauthenticating
    became = one.receive(METADATA, 10)
    assert isinstance(became, Reply)
    assert (became.error, became.close) == (ErrorCode.ILLEGAL_SASL_STATE, True)


def test_signing_in_again_has_ten_seconds_too() -> None:
    one = session(5_000)
    sign_in(one)
    one.receive(SASL_HANDSHAKE, 1_000)
    one.handshake("PLAIN", 1)
    assert not one.overdue(10_999)
    assert isinstance(one.receive(SASL_AUTHENTICATE, 11_000), Close)


def test_signing_in_again_within_a_second_is_refused_and_nothing_else_changes() -> None:
    one = session(5_000)
    sign_in(one)
    sign_in(one, 10)
    assert one.receive(SASL_HANDSHAKE, 1_009) == Reply(ErrorCode.ILLEGAL_SASL_STATE)
    assert one.receive(METADATA, 1_009) is Goes.HANDLER
    assert one.receive(SASL_HANDSHAKE, 1_010) is Goes.HANDSHAKE
    short = session(100)
    sign_in(short)
    sign_in(short, 10)
    assert isinstance(short.receive(SASL_HANDSHAKE, 900), Close), "expired meanwhile"


@pytest.mark.parametrize("version", [0, 1])
def test_the_principal_cannot_change(version: int) -> None:
    one = session(5_000)
    sign_in(one)
    refused = sign_in(one, 10, version=version, principal=user("bob"))
    if version:
        assert isinstance(refused, Reply)
        assert (refused.error, refused.close) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
        assert "alice" not in str(refused.message)
    else:
        assert isinstance(refused, Close)
    assert one.stage is Stage.CLOSED
    assert one.principal == ALICE


def test_the_mechanism_cannot_change() -> None:
    one = session(5_000)
    sign_in(one)
    refused = sign_in(one, 10, mechanism="SCRAM-SHA-256")
    assert refused == Reply(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism "
        "'PLAIN'",
        close=True,
        delay_ms=100,
    )


def test_a_failure_says_that_it_was_a_reauthentication() -> None:
    one = session(5_000)
    sign_in(one)
    one.receive(SASL_HANDSHAKE, 10)
    one.handshake("PLAIN", 1)
    failed = one.failed(SaslFailure("x"))
    assert isinstance(failed, Reply)
    assert str(failed.message).startswith("Authentication failed during re-authentication")


def test_calls_out_of_order_are_the_callers_bug() -> None:
    with pytest.raises(RuntimeError, match="out of order"):
        session().challenged(b"")
    with pytest.raises(RuntimeError, match="out of order"):
        session().succeeded(b"", ALICE, 0)
    with pytest.raises(RuntimeError, match="out of order"):
        session().failed(SaslFailure("x"))
    with pytest.raises(RuntimeError, match="out of order"):
        session().receive_token(0)
    one = session()
    sign_in(one)
    with pytest.raises(RuntimeError):
        one.handshake("PLAIN", 1)
    with pytest.raises(RuntimeError):
        one.versions_answered(in_full=True)


def test_whatever_comes_nothing_reaches_a_handler_before_somebody_has_signed_in() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    handled = 0
    for _ in range(3_000):
        one, signed_in, now_ms = session(rng.choice((None, 500, 5_000))), False, 0
        for _ in range(rng.randrange(1, 14)):
            now_ms += rng.choice((0, 0, 1, 300, 3_000))
            if one.expects_raw_token:
                became: Goes | Reply | Close = one.receive_token(now_ms)
            else:
                became = one.receive(
                    rng.choice((API_VERSIONS, SASL_HANDSHAKE, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA)),
                    now_ms,
                )
            if became is Goes.HANDLER:
                assert signed_in and one.stage is Stage.COMPLETE
                assert one.expires_at_ms is None or now_ms <= one.expires_at_ms
                handled += 1
            elif became is Goes.API_VERSIONS:
                one.versions_answered(rng.random() < 0.7)
            elif became is Goes.HANDSHAKE:
                one.handshake(rng.choice(("PLAIN", "PLAIN", "GSSAPI")), rng.randrange(2))
            elif became is Goes.TOKEN:
                if rng.random() < 0.3:
                    one.failed(SaslFailure("x"))
                elif rng.random() < 0.3:
                    one.challenged(b"")
                else:
                    one.succeeded(b"", ALICE, now_ms)
                    signed_in = True
            if one.stage is Stage.CLOSED:
                assert not isinstance(one.receive(METADATA, now_ms), Goes)
    assert handled > 100


def test_what_others_make_it_wait_is_not_its_own_time() -> None:
    one = session()
    one.receive(SASL_HANDSHAKE, 0)
    one.handshake("PLAIN", 1)
    one.waits(30_000)
    assert one.receive(SASL_AUTHENTICATE, 39_999) is Goes.TOKEN
    assert one.overdue(40_000)
