"""SASLprep: the examples of RFC 4013, and which passwords may be set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.security.saslprep import BadText, check_new_password, saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_examples_of_the_rfc(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text", ["\u0007", "\u0627\u0031", "\ue000", "\ufffd", "\U000e0001", "\u0221", "\u200e"]
)
def test_what_is_not_allowed(text: str) -> None:
    with pytest.raises(BadText):
        saslprep(text)


@given(st.text())
def test_what_is_prepared_stays_so(text: str) -> None:
    try:
        prepared = saslprep(text)
    except BadText:
        return
    assert saslprep(prepared) == prepared


@pytest.mark.parametrize("password", ["correct horse", "jörg-ß", "пароль", "שלום"])
def test_passwords_that_every_client_hashes_alike(password: str) -> None:
    check_new_password(password)


@pytest.mark.parametrize("password", ["", "e\u0301", "\u2168", "tab\t", "soft\u00adhyphen"])
def test_passwords_that_clients_hash_differently_are_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ValueError, match="password") as caught:
        check_new_password(password)
    assert not password or password not in str(caught.value)
