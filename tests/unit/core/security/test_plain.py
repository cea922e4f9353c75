"""PLAIN on SCRAM's users: what is read, what is derived, and what is remembered."""

import pytest

from penstock_core.security.plain import Derivation, PlainLogin, PlainMemo, PlainServer, parse
from penstock_core.security.sasl import OTHER_AUTHZID, SaslFailure
from penstock_core.security.scram import ScramCredential, ScramMechanism, credential

SECRET = b"the cluster's secret"
WRONG = "Authentication failed: Invalid username or password"


def stored(password: str, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> ScramCredential:
    return credential(mechanism, b"salt", mechanism.salted_password(password.encode(), b"salt", 4096), 4096)


class Users:
    """A store, and a memo beside it."""

    def __init__(self) -> None:
        self.credentials = {("alice", ScramMechanism.SHA_256): stored("secret")}
        self.memo = PlainMemo(b"process key", entries_max=3)
        self.derived = 0

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.credentials.get((user, mechanism))

    def sign_in(self, token: bytes, now_ms: int = 0) -> PlainServer:
        server = PlainServer(self.find, SECRET, self.memo)
        derivation = server.begin(token, now_ms)
        if derivation is not None:
            self.derived += 1
            server.finish(derivation, derivation.derive(), now_ms)
        return server


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\xff\0secret", None),
    ],
)
def test_messages_that_are_refused_in_kafkas_words(token: bytes, text: str | None) -> None:
    with pytest.raises(SaslFailure) as caught:
        parse(token)
    assert caught.value.client_text == text


def test_a_login_shows_no_password() -> None:
    login = parse("\0jörg\0geheim".encode())
    assert login == PlainLogin("", "jörg", "geheim")
    assert "geheim" not in repr(login)
    assert "geheim" not in repr(Derivation(login, stored("x"), known=True))


def test_the_right_password_signs_in() -> None:
    server = Users().sign_in(b"\0alice\0secret")
    assert (server.complete, server.user) == (True, "alice")
    assert Users().sign_in(b"alice\0alice\0secret").complete


@pytest.mark.parametrize("token", [b"\0alice\0Secret", b"\0bob\0secret", b"admin\0alice\0wrong"])
def test_unknown_user_and_wrong_password_look_and_cost_alike(token: bytes) -> None:
    users = Users()
    with pytest.raises(SaslFailure) as caught:
        users.sign_in(token)
    assert caught.value.client_text == WRONG
    assert users.derived == 1
    assert len(users.memo) == 0


def test_another_authorization_id_is_refused_after_the_password() -> None:
    users = Users()
    for _ in range(2):  # derived, then remembered
        with pytest.raises(SaslFailure) as caught:
            users.sign_in(b"admin\0alice\0secret")
        assert caught.value.client_text == OTHER_AUTHZID


def test_of_two_credentials_that_for_sha_512_counts() -> None:
    users = Users()
    users.credentials["alice", ScramMechanism.SHA_512] = stored("newer", ScramMechanism.SHA_512)
    assert users.sign_in(b"\0alice\0newer").complete
    with pytest.raises(SaslFailure):
        users.sign_in(b"\0alice\0secret")


def test_a_right_password_is_derived_once_a_minute() -> None:
    users = Users()
    for now_ms in (0, 1, 59_999):
        assert users.sign_in(b"\0alice\0secret", now_ms).complete
    assert users.derived == 1
    users.sign_in(b"\0alice\0secret", 60_000)
    assert users.derived == 2


def test_a_changed_password_is_forgotten_at_once() -> None:
    users = Users()
    users.sign_in(b"\0alice\0secret")
    users.credentials["alice", ScramMechanism.SHA_256] = stored("newer")
    with pytest.raises(SaslFailure):
        users.sign_in(b"\0alice\0secret", 1)
    users.credentials.clear()
    with pytest.raises(SaslFailure):
        users.sign_in(b"\0alice\0newer", 2)


def test_the_memo_is_bounded_and_keeps_the_newest() -> None:
    memo = PlainMemo(b"key", lifetime_ms=100, entries_max=3)
    credential_ = stored("x")
    logins = [PlainLogin("", f"user{number}", "x") for number in range(6)]
    for now_ms, login in enumerate(logins):
        memo.remember(login, credential_, now_ms)
    assert [memo.knows(login, credential_, 6) for login in logins] == [False] * 3 + [True] * 3
    memo.remember(logins[3], credential_, 50)
    memo.remember(logins[0], credential_, 105)
    assert len(memo) == 2
    assert memo.knows(logins[3], credential_, 149)
    assert not memo.knows(logins[3], credential_, 150)
    assert not PlainMemo(b"other").knows(logins[3], credential_, 60)
