"""Sign-in, rights and quotas: what strangers send before anybody knows them, and what decides about it."""

from __future__ import annotations

import json
import math
import random
import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

from fuzz.target import Target, expect
from penstock_core.errors import PenstockError
from penstock_core.security import login_limits
from penstock_core.security.acl import AclBinding, read_binding, read_filter
from penstock_core.security.acl_decision import AclDecider
from penstock_core.security.acl_set import AclSet
from penstock_core.security.oauthbearer import (
    ClaimsPolicy,
    OAuthBearerServer,
    TokenIdentity,
    TokenRefused,
)
from penstock_core.security.plain import PlainMemo, PlainServer, parse
from penstock_core.security.principal import user
from penstock_core.security.principal_mapping import BadRule, NoRuleMatches, PrincipalMapping
from penstock_core.security.quota_entities import QuotaTable, check_value, read_entity
from penstock_core.security.quota_shares import shares
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
from penstock_core.security.scram import ScramCredential, ScramMechanism, ScramServer, credential
from penstock_core.security.scram_client import ScramClient
from support import acl_reference

_SECRET: Final = b"the cluster's secret"
_ITERATIONS: Final = 4
_SALTED: Final = {one: one.salted_password(b"pencil", b"salt", _ITERATIONS) for one in ScramMechanism}
_KNOWN: Final = {one: credential(one, b"salt", _SALTED[one], _ITERATIONS) for one in ScramMechanism}


def _find(name: str, mechanism: ScramMechanism) -> ScramCredential | None:
    return _KNOWN[mechanism] if name == "user" else None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _mechanism(data: bytes) -> ScramMechanism:
    return ScramMechanism.SHA_512 if data[:1] > b"\x7f" else ScramMechanism.SHA_256


def _scram_server(data: bytes) -> None:
    """A byte for the mechanism and whether the proof is put right, and the client's two messages with NUL
    between, which neither has.
    """
    mechanism = _mechanism(data)
    first, _, final = data[1:].partition(b"\0")
    server = ScramServer(mechanism, "server", _find, _SECRET)
    answer = server.evaluate(first)
    expect(answer.startswith(b"r=") and not server.complete, "the first message signs nobody in")
    bare, mark, _ = final.rpartition(b",p=")
    said = first[first.index(b"n=", 2) :] + b"," + answer + b"," + bare
    key = mechanism.hmac(_SALTED[mechanism], b"Client Key")
    signature = mechanism.hmac(mechanism.hash(key), said)
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    if mark and data[0] & 1:
        final = bare + mark + proof
    verifier = server.evaluate(final)
    expect(server.complete and server.user == "user" and verifier.startswith(b"v="), "a user that there is")
    expect(bare.startswith(b"c=") and final == bare + mark + proof, "the proof is of the password")


def _scram_client(data: bytes) -> None:
    """The server's two messages."""
    client = ScramClient(_mechanism(data), "user", "pencil", "client", iterations_min=1, iterations_max=50)
    first, _, final = data[1:].partition(b"\0")
    expect(client.final(first).startswith(b"c=biws,r=client"), "the nonce continues ours")
    client.finish(final)


def _scram_exchanges() -> Iterator[tuple[bytes, bytes, bytes, bytes, bytes]]:
    for mechanism in ScramMechanism:
        head = b"\xff" if mechanism is ScramMechanism.SHA_512 else b"\0"
        for extension in (b"", b",x=y"):
            server = ScramServer(mechanism, "server", _find, _SECRET)
            client = ScramClient(mechanism, "user", "pencil", "client", iterations_min=1)
            client._bare += extension
            first = client.first()
            answer = server.evaluate(first)
            final = client.final(answer)
            yield head, first, answer, final, server.evaluate(final)


def _plain(data: bytes) -> None:
    login = parse(data)
    expect("\0".join((login.authzid, login.user, login.password)).encode() == data, "as it was sent")
    server = PlainServer(_find, _SECRET, PlainMemo(b"key"))
    derivation = server.begin(data, 0)
    expect(derivation is not None, "nothing is remembered yet")
    if derivation is not None:
        # Not PBKDF2: what it gives is the caller's; here it is right when the password is.
        right = login.password == "pencil"
        salted = _SALTED[derivation.credential.mechanism] if right else bytes(64)
        server.finish(derivation, salted, 0)
    expect(server.complete and login.user == "user" and login.authzid in ("", "user"), "who there is")


def _oauthbearer(data: bytes) -> None:
    """The first message; a token is good when it begins with `good`."""
    server = OAuthBearerServer()

    def verify(token: str) -> TokenIdentity:
        expect(token.isascii() and token.encode() in data, "the token is part of the message")
        if not token.startswith("good"):
            raise TokenRefused("not good")
        return TokenIdentity("user", 1)

    answer, identity = server.evaluate(data, verify)
    if identity is None:
        expect(json.loads(answer) == {"status": "invalid_token"} and server.refused, "challenged")
        server.end(b"\x01")
    expect(server.complete and answer == b"", "signed in")


_POLICY: Final = ClaimsPolicy("issuer", frozenset({"penstock"}))


_ODD: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1e9,
        1e300,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        -(10**400),
        970,
        1_030,
    ),
    *(
        969.5,
        1_031,
        "",
        "x",
        "none",
        "HS256",
        "RS256",
        "ES256",
        "issuer",
        "penstock",
        "a" * 300,
        "\x1b",
        "\ud800",
    ),
    *([], ["penstock"], ["penstock", 1], [["penstock"]], [{}], {}, {"penstock": 1}),
)


def _claims(data: bytes) -> None:
    """Header and claims as JSON, a line each; or what odd values the bytes choose for them."""
    try:
        header, claims = (json.loads(line) for line in data.split(b"\n", 1))
    except (ValueError, RecursionError):
        rng = random.Random(data)
        header = {"alg": "RS256"}
        claims = {"iss": "issuer", "aud": "penstock", "sub": "user", "iat": 990, "exp": 1_100}
        for _ in range(rng.randrange(4)):
            what = rng.choice((header, claims, claims, claims))
            what[rng.choice((*what, "nbf", "crit", "sub"))] = rng.choice(_ODD)
    if not isinstance(header, dict) or not isinstance(claims, dict):
        return
    identity = _POLICY.check(header, claims, 1_000.0)
    expect(header["alg"] in ("RS256", "ES256") and claims["iss"] == "issuer", "what the policy wants")
    expect(claims["exp"] >= 970 and claims["iat"] <= 1_030, "now is between")
    expect(0 < len(identity.name) <= 255 and identity.name.isprintable(), "a name")
    expect(identity.expires_at_ms > 1_000_000, "for a while")


def _claims_seeds() -> Iterator[bytes]:
    claims = {"iss": "issuer", "aud": "penstock", "sub": "user", "iat": 990, "exp": 1_100}
    for header in ({"alg": "RS256"}, {"alg": "ES256", "kid": "1", "typ": "JWT"}):
        for more in ({}, {"aud": ["x", "penstock"]}, {"nbf": 999.5, "exp": 1e9}):
            yield json.dumps(header).encode() + b"\n" + json.dumps({**claims, **more}).encode()


_APIS: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, 3, 0)


def _session(data: bytes) -> None:
    """Each byte is a request or what comes of it."""
    session = SaslSession(("PLAIN",), data[0] * 10 if data else None, 0)
    signed_in, now_ms, alice = False, 0, user("alice")
    for byte in data[1:]:
        now_ms += (byte >> 4) * 37
        became: Goes | Reply | Close = (
            session.receive_token(now_ms)
            if session.expects_raw_token
            else session.receive(_APIS[byte % len(_APIS)], now_ms)
        )
        low = byte & 15
        if became is Goes.HANDLER:
            expect(signed_in and session.stage is Stage.COMPLETE, "nobody comes in who has not signed in")
            expect(session.expires_at_ms is None or now_ms <= session.expires_at_ms, "nor who has expired")
        elif became is Goes.API_VERSIONS:
            session.versions_answered(low < 12)
        elif became is Goes.HANDSHAKE:
            session.handshake("PLAIN" if low < 14 else "OTHER", low & 1)
        elif became is Goes.TOKEN:
            if low < 3:
                session.challenged(b"")
            elif low < 5:
                session.failed(SaslFailure("x"))
            else:
                session.succeeded(b"", alice if low < 14 else user("bob"), now_ms, None if low < 9 else low)
                signed_in = signed_in or session.stage is Stage.COMPLETE
        if session.stage is Stage.CLOSED:
            expect(isinstance(session.receive(3, now_ms), Close), "closed for good")
            return


def _acl_request(data: bytes) -> None:
    """Four codes, and name, principal and host."""
    if len(data) < 4:
        return
    kind, pattern, operation, permission = struct.unpack("4b", data[:4])
    name, principal, host = (*_text(data[4:]).split("\0"), "", "", "")[:3]
    entry = read_binding(kind, pattern, name, principal, host, operation, permission)
    wanted = read_filter(kind, pattern, name, principal, host, operation, permission)
    expect(wanted.matches(entry) and str(entry.principal) == principal, "a filter of its words finds it")
    acls = AclSet([entry])
    question = (entry.principal, "h" if host == "*" else host, entry.operation, entry.resource_type, name)
    decided = AclDecider(acls).explain(*question)
    expect(decided.allowed == (permission == 3) and decided.entry == entry, "it decides about its resource")
    expect(AclDecider(acls).authorize(*question) == decided.allowed, "and both ways to ask agree")
    expect(len(acls.with_removed(entry)) == 0, "it can be taken away")


def _acl_decision(data: bytes) -> None:
    """The bytes choose entries, changes and questions; a slow reference has to agree."""
    rng = random.Random(data)
    entries: set[AclBinding] = set()
    acls = AclSet()
    for _ in range(rng.randrange(1, 4)):
        added = {acl_reference.some_entry(rng) for _ in range(rng.randrange(8))}
        removed = {one for one in sorted(entries) if rng.random() < 0.3}
        entries = entries - removed | added
        acls = acls.changed(added, removed)
        everyone, there = rng.random() < 0.5, sorted(entries)
        decider = AclDecider(acls, (), everyone)
        for _ in range(4):
            question = acl_reference.some_question(rng, there)
            right = acl_reference.authorize(entries, (), everyone, question)
            expect(decider.authorize(*question) == right, f"the reference says {right} to {question}")
            expect(decider.explain(*question).allowed == right, f"explained as {right}: {question}")
            principal, host, operation, kind, _ = question
            right = acl_reference.authorize_by_resource_type(
                entries, (), everyone, principal, host, operation, kind
            )
            found = decider.authorize_by_resource_type(principal, host, operation, kind)
            expect(found == right, f"the reference says {right} to {question} by type")
    expect(set(acls) == entries and len(acls) == len(entries), "what was added and not removed")


def _quota(data: bytes) -> None:
    """`kind=name;...` (no `=`: the default), the key, and a double."""
    if len(data) < 8:
        return
    (value,) = struct.unpack(">d", data[:8])
    words, _, key = _text(data[8:]).partition("\0")
    parts: list[tuple[str, str | None]] = []
    for word in words.split(";"):
        kind, equals, name = word.partition("=")
        parts.append((kind, name if equals else None))
    entity = read_entity(parts)
    check_value(entity, key, value)
    expect(math.isfinite(value) and value > 0, "a quota is a positive number")
    table = QuotaTable().with_quota(entity, key, value)
    expect(list(table) == [(entity, key, value)] and "\n" not in str(entity), "it is there")
    dealt = shares(value, {"a": value, "b": 0.0, "c": None})
    expect(math.fsum((*dealt.values(), -value)) <= 0, "and shared, it is no more")


def _quota_seeds() -> Iterator[bytes]:
    for words, key, value in (
        (b"user=alice", b"producer_byte_rate", 1e6),
        (b"user;client-id=c", b"consumer_byte_rate", 1.0),
        (b"user=a;client-id", b"request_percentage", 12.5),
        (b"client-id", b"controller_mutation_rate", 0.5),
        (b"ip=10.0.0.1", b"connection_creation_rate", 20.0),
        (b"ip", b"connection_creation_rate", 2.0**31 - 1),
    ):
        yield struct.pack(">d", value) + words + b"\0" + key


def _principal_rules(data: bytes) -> None:
    rules, _, subject = _text(data).partition("\0")
    mapping = PrincipalMapping(rules)
    expect(mapping.name(subject) != "", "a name has characters")


def _login_limits(data: bytes) -> None:
    """Each byte an attempt, or the end of one."""
    limits, pending, now_ms = login_limits.LoginLimits(), list[login_limits.Attempt](), 0
    for byte in data:
        now_ms += byte & 7
        if byte & 128 and pending:
            attempt = pending.pop(byte % len(pending))
            (limits.succeeded if byte & 64 else limits.failed)(attempt, now_ms)
        else:
            begun = limits.begin(f"10.0.0.{byte >> 5}", f"user{byte & 31}", now_ms)
            if begun is not None:
                expect(0 <= begun.delay_ms <= login_limits.DELAY_MS_MAX, "never longer than that")
                pending.append(begun)
        waiting: dict[str, int] = {}
        for one in pending:
            waiting[one.address] = waiting.get(one.address, 0) + one.waits
        expect(max(waiting.values(), default=0) <= login_limits.WAITING_MAX, "few wait")
    if not pending:
        expect(all(not one.waiting for one in limits._addresses.values()), "no place is lost")


TARGETS: Final = [
    Target(
        "sasl.scram_server",
        _scram_server,
        (SaslFailure,),
        lambda: [
            bytes([head[0] & 0xFE | right]) + first + b"\0" + final
            for head, first, _, final, _ in _scram_exchanges()
            for right in (0, 1)
        ],
        share=20,
        input_bytes_max=512,
        words=(b"n,,", b"a=user", b"n=user", b",r=", b"c=biws", b",p=", b"=2C", b"=3D", b"\0", b",m=x"),
    ),
    Target(
        "sasl.scram_client",
        _scram_client,
        (SaslFailure,),
        lambda: [
            head + answer + b"\0" + verifier
            for head, first, answer, _, verifier in _scram_exchanges()
            if b",x=" not in first
        ],
        share=10,
        input_bytes_max=512,
        words=(b"r=client", b",s=", b",i=4", b"v=", b"e=", b"\0"),
    ),
    Target(
        "sasl.plain",
        _plain,
        (SaslFailure,),
        lambda: [b"\0user\0pencil", b"user\0user\0pencil"],
        input_bytes_max=256,
        words=(b"\0", b"user", b"pencil"),
    ),
    Target(
        "sasl.oauthbearer",
        _oauthbearer,
        (SaslFailure,),
        lambda: [
            b"n,,\x01auth=Bearer good.a-b_c~+/==\x01\x01",
            b"n,a=user,\x01auth=bearer  good\x01traceId=a b\x01\x01",
            b"n,,\x01k=v\x01auth=Bearer good\x01\x01",
            b"n,,\x01auth=Bearer bad\x01\x01",
        ],
        share=15,
        input_bytes_max=512,
        words=(b"\x01", b"auth=", b"Bearer ", b"n,", b"a=", b"good"),
    ),
    Target(
        "sasl.claims",
        _claims,
        (TokenRefused,),
        _claims_seeds,
        input_bytes_max=512,
        words=(b'"alg":', b'"exp":', b'"nbf":', b"NaN", b"1e999", b"9" * 310, b"null", b"true", b"[]", b"{}"),
    ),
    Target(
        "sasl.session",
        _session,
        (),
        lambda: [
            b"\0\x00\x01\x07\x03",
            b"\x20\x01\x07\x03\x01\x07\x03\x03",
            b"\0\x05\x06\x05\x08",
            b"\xff\x0a\x0b\x0c",
        ],
        share=15,
        input_bytes_max=128,
    ),
    Target(
        "security.acl_request",
        _acl_request,
        (PenstockError,),
        lambda: [
            b"\x02\x03\x03\x03orders\0User:alice\0*",
            b"\x03\x04\x02\x02team-\0User:*\x0010.0.0.1",
            b"\x04\x03\x08\x03kafka-cluster\0User:CN=a:b\0::1",
            b"\x05\x03\x04\x03*\0User:\xc3\xa9\0*",
        ],
        input_bytes_max=512,
        words=(b"\0", b"User:", b"*", b"kafka-cluster"),
    ),
    Target(
        "security.acl_decision", _acl_decision, (), lambda: [b"", b"a", b"bc"], share=2, input_bytes_max=16
    ),
    Target(
        "security.quota",
        _quota,
        (PenstockError,),
        _quota_seeds,
        input_bytes_max=256,
        words=(b"user", b"client-id", b"ip=", b";", b"\0", b"::1", b"producer_byte_rate"),
    ),
    Target(
        "security.principal_rules",
        _principal_rules,
        (BadRule, NoRuleMatches),
        lambda: [
            b"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT\0CN=Duke,OU=ServiceUsers,O=x",
            b"RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/U\0CN=a,OU=b,O=c",
            b"DEFAULT\0CN=a",
            b"RULE:a*/-$0\\$/,DEFAULT\0aaa",
        ],
        share=5,
        input_bytes_max=400,
        words=(
            b"RULE:",
            b"DEFAULT",
            b"/$1/",
            b"(.*?)",
            b"/L",
            b"\0",
            b"\\",
            b"$",
            b",",
            b"[",
            b"{2}",
            b"\\pL",
        ),
    ),
    Target(
        "security.login_limits",
        _login_limits,
        (),
        lambda: [bytes(range(0, 256, 3)), b"\x01\x80" * 60, b"\x01" * 40 + b"\x80" * 40],
        share=3,
        input_bytes_max=128,
    ),
]
