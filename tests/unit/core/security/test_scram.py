"""SCRAM: the vectors of the RFCs, every way to fail, and what an unknown user sees."""

import os
import random
from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.sasl import OTHER_AUTHZID, SaslFailure, decode_saslname, encode_saslname
from penstock_core.security.scram import (
    MECHANISM_OF,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    check_alteration,
    credential,
    false_credential,
    salt_text,
)
from penstock_core.security.scram_client import ScramClient

SHA_256 = ScramMechanism.SHA_256
SECRET = b"the cluster's secret"

# RFC 7677, 3.
VECTORS = {
    SHA_256: (
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


def stored(
    mechanism: ScramMechanism = SHA_256,
    password: str = "pencil",
    salt: bytes = b"salt",
    iterations: int = 4096,
) -> ScramCredential:
    salted = mechanism.salted_password(password.encode(), salt, iterations)
    return credential(mechanism, salt, salted, iterations)


KNOWN = {mechanism: stored(mechanism) for mechanism in ScramMechanism}


def find(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
    return KNOWN[mechanism] if user == "user" else None


def server(mechanism: ScramMechanism = SHA_256, nonce: str = "server") -> ScramServer:
    return ScramServer(mechanism, nonce, find, SECRET)


def exchange(
    mechanism: ScramMechanism = SHA_256, user: str = "user", password: str = "pencil"
) -> tuple[ScramServer, ScramClient, bytes]:
    at_server, client = server(mechanism), ScramClient(mechanism, user, password, "client")
    return at_server, client, client.final(at_server.evaluate(client.first()))


def test_the_vector_of_rfc_7677_from_both_sides() -> None:
    first, nonce, server_first, client_final, server_final = VECTORS[SHA_256]
    known = stored(salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    at_server = ScramServer(SHA_256, nonce, lambda user, _: known if user == "user" else None, SECRET)
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == first
    assert at_server.evaluate(first) == server_first
    assert client.final(server_first) == client_final
    assert at_server.evaluate(client_final) == server_final
    client.finish(server_final)
    assert (at_server.complete, at_server.user) == (True, "user")


def test_keys_are_those_that_kafka_makes() -> None:
    """By ScramFormatter of Kafka 4.3.1; the password is hashed as it is typed."""
    made = stored(ScramMechanism.SHA_512, "p\u00e9ncil")
    assert made.stored_key == b64decode(
        "/W3NRKyccA26rC4DgzUcAOESK5shDPugAm9QJMqkDt7f15W4FzdwdDS2gfgt6FRYXfMwidw0de0AbaMBc8/w/A=="
    )
    assert made.server_key == b64decode(
        "3GOvmXFAoG5dEnz3BlD32Bm4ow9qPmPy9TTAJNQa3j184mBSJRe5p+uJIRUWuLewRodzFtXWvO6Cfk6rD/MCdQ=="
    )


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_both_mechanisms_end_well(mechanism: ScramMechanism) -> None:
    at_server, client, final = exchange(mechanism)
    client.finish(at_server.evaluate(final))
    assert at_server.complete
    assert MECHANISM_OF[mechanism.mechanism_name] is mechanism


@pytest.mark.parametrize(("user", "password"), [("user", "Pencil"), ("user", ""), ("nobody", "pencil")])
def test_a_wrong_password_and_an_unknown_user_fail_at_the_proof_with_nothing_told(
    user: str, password: str
) -> None:
    at_server, _, final = exchange(user=user, password=password)
    with pytest.raises(SaslFailure) as caught:
        at_server.evaluate(final)
    assert caught.value.client_text is None
    assert not at_server.complete
    with pytest.raises(SaslFailure, match="after the end"):
        at_server.evaluate(final)


def test_an_unknown_user_has_a_salt_that_stays_and_looks_like_others() -> None:
    firsts = {server().evaluate(b"n,,n=nobody,r=client") for _ in range(3)}
    assert len(firsts) == 1
    assert false_credential(SHA_256, SECRET, "a") != false_credential(SHA_256, SECRET, "b")
    assert false_credential(SHA_256, SECRET, "a") != false_credential(SHA_256, b"other", "a")
    false = false_credential(SHA_256, SECRET, "nobody")
    assert 20 <= len(false.salt) <= 26 and false.salt.isalnum() and false.iterations == 4096
    assert len(false.stored_key) == len(KNOWN[SHA_256].stored_key)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", "malformed"),
        (b"n,,n=user", "malformed"),
        (b"n,,n=,r=client", "malformed"),
        (b"n,,n=user,r=", "malformed"),
        (b"n,,n=us=er,r=client", "malformed"),
        (b"n,,n=us,er,r=client", "malformed"),
        (b"n,,m=x,n=user,r=client", "malformed"),
        (b"n,,n=\xc3\xa9,r=client", "malformed"),
        (b"n,,n=user,r=cli ent", "malformed"),
        (b"n,,n=user,r=client,", "malformed"),
        (b"n,a=,n=user,r=client", "malformed"),
        (b"p=tls-unique,,n=user,r=client", "channel binding"),
        (b"y,,n=user,r=client", "channel binding"),
    ],
)
def test_first_messages_that_are_refused(first: bytes, why: str) -> None:
    with pytest.raises(SaslFailure, match=why):
        server().evaluate(first)


def test_extensions_are_ignored_but_belong_to_what_is_signed() -> None:
    at_server, client = server(), ScramClient(SHA_256, "user", "pencil", "client")
    client._bare += b",tokenauth=false,x=1"
    assert at_server.evaluate(client.first()).startswith(b"r=clientserver,")
    first, at_server = at_server, server()
    final = client.final(at_server.evaluate(client.first()))
    client.finish(at_server.evaluate(final))
    assert at_server.complete and not first.complete


@pytest.mark.parametrize("user", ["user", "nobody"])
def test_another_authorization_id_is_refused_whether_the_user_exists_or_not(user: str) -> None:
    with pytest.raises(SaslFailure) as caught:
        server().evaluate(b"n,a=admin,n=%s,r=client" % user.encode())
    assert caught.value.client_text == OTHER_AUTHZID
    server().evaluate(b"n,a=%s,n=%s,r=client" % (user.encode(), user.encode()))


def test_librdkafka_before_2_6_1_sends_its_own_nonce_twice() -> None:
    """Taken as Kafka did until 3.9; the proof is made over what was sent."""
    mechanism = ScramMechanism.SHA_512
    for nonce, taken in (("clientclientserver", True), ("xlientclientserver", False), ("clientserver", True)):
        at_server = server(mechanism)
        said = at_server.evaluate(b"n,,n=user,r=client")
        read = dict(part.split(b"=", 1) for part in said.split(b","))
        salted = mechanism.salted_password(b"pencil", b64decode(read[b"s"]), int(read[b"i"]))
        client_key = mechanism.hmac(salted, b"Client Key")
        bare = b"c=biws,r=" + nonce.encode()
        message = b"n=user,r=client," + said + b"," + bare
        signature = mechanism.hmac(mechanism.hash(client_key), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        final = bare + b",p=" + b64encode(proof)
        if taken:
            assert at_server.evaluate(final).startswith(b"v=")
        else:
            with pytest.raises(SaslFailure, match="nonce"):
                at_server.evaluate(final)


def _changed(final: bytes, old: bytes, new: bytes) -> bytes:
    assert old in final
    return final.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"r=clientserver", b"r=client", "nonce"),
        (b"r=clientserver", b"r=xclientserver", "nonce"),
        (b"r=clientserver", b"r=Clientserver", "nonce"),
        (b"c=biws", b"c=eSws", "header"),
        (b"c=biws", b"c=", "header"),
        (b"c=biws", b"c=biw", "malformed"),
        (b"c=biws", b"c=biws,a=b", "malformed"),
        (b",p=", b",p=AAAA", "wrong password"),
        (b",p=", b",q=", "malformed"),
        (b",r=", b",r=,", "malformed"),
    ],
)
def test_final_messages_that_are_refused(old: bytes, new: bytes, why: str) -> None:
    at_server, _, final = exchange()
    with pytest.raises(SaslFailure, match=why):
        at_server.evaluate(_changed(final, old, new))


def test_an_empty_proof_is_a_wrong_one() -> None:
    at_server, _, final = exchange()
    with pytest.raises(SaslFailure, match="wrong password"):
        at_server.evaluate(final[: final.index(b",p=") + 3])


def test_no_flipped_bit_signs_in() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    _, client, final = exchange()
    for _ in range(2_000):
        at_server = server()
        at_server.evaluate(client.first())
        broken = bytearray(final)
        for _ in range(rng.choice((1, 1, 2))):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        if broken == final:
            continue
        with pytest.raises(SaslFailure):
            at_server.evaluate(bytes(broken))


@settings(max_examples=30)
@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1), st.text(max_size=20))
def test_any_ascii_name_and_any_password_sign_in(name: str, password: str) -> None:
    known = stored(password=password)
    at_server = ScramServer(SHA_256, "s", lambda user, _: known if user == name else None, SECRET)
    client = ScramClient(SHA_256, name, password, "c")
    client.finish(at_server.evaluate(client.final(at_server.evaluate(client.first()))))
    assert at_server.user == name == decode_saslname(encode_saslname(name))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=client,s=c2FsdA==,i=4096", "nonce"),
        (b"r=clientx,s=c2FsdA==,i=99999999", "99999999 iterations, the most is 1000000"),
        (b"r=clientx,s=c2FsdA==,i=4095", "4095 iterations, the least is 4096"),
        (b"r=clientx,s=c2FsdA==,i=1", "1 iterations, the least is 4096"),
        (b"r=clientx,s=c2FsdA==,i=0", "malformed"),
        (b"r=clientx,s=c2F,i=4096", "malformed"),
        (b"e=no", "malformed"),
    ],
)
def test_a_client_is_careful_with_the_servers_first_message(message: bytes, why: str) -> None:
    with pytest.raises(SaslFailure, match=why):
        ScramClient(SHA_256, "user", "pencil", "client").final(message)


@pytest.mark.parametrize(
    ("message", "why"), [(b"v=AAAA", "does not know"), (b"e=other-error", "other-error"), (b"", "malformed")]
)
def test_a_client_does_not_take_anybody_for_the_server(message: bytes, why: str) -> None:
    _, client, _ = exchange()
    with pytest.raises(SaslFailure, match=why):
        client.finish(message)
    with pytest.raises(SaslFailure):
        ScramClient(SHA_256, "user", "pencil", "client").finish(message)


@pytest.mark.parametrize(
    ("user", "mechanism", "iterations", "code"),
    [
        ("", 1, 4096, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("", 0, None, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 0, 4096, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("a", 3, None, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("a", 1, 4095, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 2, 16_385, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_what_may_be_asked_of_a_credential(
    user: str, mechanism: int, iterations: int | None, code: ErrorCode
) -> None:
    with pytest.raises(PenstockError) as caught:
        check_alteration(user, mechanism, iterations)
    assert caught.value.code == code


def test_what_is_acceptable_gives_the_mechanism() -> None:
    assert check_alteration("a", 2, 16_384) is ScramMechanism.SHA_512
    assert check_alteration("a", 1, None) is SHA_256


def test_a_credential_shows_no_key() -> None:
    assert "iterations=4096" in repr(KNOWN[SHA_256])
    assert "key" not in repr(KNOWN[SHA_256]) and "salt" not in repr(KNOWN[SHA_256])


def test_salts_have_the_form_of_kafkas() -> None:
    for _ in range(50):
        salt = salt_text(int.from_bytes(os.urandom(17)))
        assert salt.isalnum() and len(salt) <= 26
    assert salt_text(0) == b"0"
    assert salt_text(36**2 - 1) == b"zz"
