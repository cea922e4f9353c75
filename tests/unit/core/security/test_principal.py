"""Principals are written as Kafka writes them, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.security.principal import ANONYMOUS, EVERYBODY, Principal, parse_principal, user


def test_written_and_read() -> None:
    assert str(user("alice")) == "User:alice"
    assert parse_principal("User:CN=a:b,OU=c") == Principal("User", "CN=a:b,OU=c")
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert parse_principal("User:*") == EVERYBODY


def test_a_name_alone_is_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="User:alice"):
        parse_principal("alice")


@given(st.text(st.characters(exclude_characters=":")), st.text())
def test_whatever_it_is_it_is_read_back(kind: str, name: str) -> None:
    assert parse_principal(str(Principal(kind, name))) == Principal(kind, name)
