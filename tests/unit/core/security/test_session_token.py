"""Tokens of the native API: good until they end, and only as they were given."""

from __future__ import annotations

import pytest

from penstock_core.security.session_token import (
    KEY_LIFETIME_MS,
    KEYS_KEPT,
    LIFETIME_MS_MAX,
    BadSessionToken,
    NoKey,
    SessionClaims,
    SessionKeys,
    key_number,
)

CLAIMS = SessionClaims("alice", 2, 17, 1_000)
ONE = {"sign-in": b"s" * 32, "session-token:1": b"1" * 32}
TWO = ONE | {"session-token:2": b"2" * 32}


def test_any_holder_of_the_key_reads_it_until_it_ends() -> None:
    token = SessionKeys(ONE).issue(CLAIMS)
    assert SessionKeys(dict(ONE)).read(token, 999) == CLAIMS
    with pytest.raises(BadSessionToken, match="expired"):
        SessionKeys(ONE).read(token, 1_000)


def test_the_newest_key_signs_and_the_one_before_still_counts() -> None:
    old, new = SessionKeys(ONE).issue(CLAIMS), SessionKeys(TWO).issue(CLAIMS)
    assert old != new
    assert SessionKeys(TWO).read(old, 0) == SessionKeys(TWO).read(new, 0) == CLAIMS
    with pytest.raises(BadSessionToken, match="key is not known"):
        SessionKeys(ONE).read(new, 0)


def test_a_key_outlives_what_it_signed() -> None:
    assert LIFETIME_MS_MAX < KEY_LIFETIME_MS * (KEYS_KEPT - 1)


def test_no_other_spelling_of_a_token_counts() -> None:
    keys = SessionKeys(ONE)
    token = keys.issue(CLAIMS)
    for at in range(len(token)):
        for other in "A=\n-_":
            changed = token[:at] + other + token[at + 1 :]
            if changed != token:
                with pytest.raises(BadSessionToken):
                    keys.read(changed, 0)
        with pytest.raises(BadSessionToken):
            keys.read(token[:at], 0)
    for bad in ("", "pst1.", "pst1.é", token + "=", token + "\n", " " + token, "eyJhbGciOiJub25lIn0.e30."):
        with pytest.raises(BadSessionToken):
            keys.read(bad, 0)


def test_another_key_of_the_same_number_does_not_count() -> None:
    token = SessionKeys({"session-token:1": b"x" * 32}).issue(CLAIMS)
    with pytest.raises(BadSessionToken, match="signature"):
        SessionKeys(ONE).read(token, 0)


def test_names_of_users_may_hold_anything() -> None:
    claims = CLAIMS._replace(user="ü\0,=\n")
    assert SessionKeys(ONE).read(SessionKeys(ONE).issue(claims), 0) == claims


def test_which_secrets_are_keys() -> None:
    assert [
        key_number(n) for n in ("session-token:12", "session-token:", "session-token:x", "sign-in", "7")
    ] == [
        12,
        None,
        None,
        None,
        None,
    ]
    with pytest.raises(NoKey):
        SessionKeys({"sign-in": b"s"}).issue(CLAIMS)
