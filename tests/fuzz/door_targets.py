"""What comes to a listener where clients sign in, as whole frames; and requests about users, ACLs and quotas, from
the frame to what the controllers make of it and back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import structlog

from fuzz.kafka_targets import VERSIONS, request_body
from fuzz.target import Target, expect
from penstock_controller.state.acls import alter_acls
from penstock_controller.state.generation import Context
from penstock_controller.state.quotas import alter_quotas
from penstock_controller.state.users import alter_user_credentials
from penstock_core.errors import PenstockError
from penstock_core.metadata.image import MetadataImage
from penstock_core.security.login_limits import LoginLimits
from penstock_core.security.oauthbearer import TokenIdentity, TokenRefused
from penstock_core.security.plain import Derivation, PlainMemo
from penstock_core.security.principal import ANONYMOUS, Identity, Principal
from penstock_core.security.scram import ScramMechanism, credential
from penstock_frontend.acl_authorizer import binding_of
from penstock_frontend.audit import ListenerAudit
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.cluster.acls import Acls
from penstock_frontend.cluster.quotas import Quotas
from penstock_frontend.cluster.users import Users
from penstock_frontend.listener.answers import CLOSE
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import Doorkeeper
from penstock_kafka.wire import codec
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.primitives import REQUEST_ITEMS_MAX, Malformed
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.audit import Audit
from penstock_runtime.turns import LoopTurns

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
_ITERATIONS: Final = 4
_CALL_MS: Final = 150
"""A look at the clock passes so much time: nobody waits for an answer that has to come late."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _frames(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + 2 <= len(data):
        size = int.from_bytes(data[position : position + 2], "big")
        yield data[position + 2 : position + 2 + size]
        position += 2 + size


def _framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames)


# -- signing in ------------------------------------------------------------------------------------


class _Clock:
    """Time passes when it is asked for."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        self.now_ms += _CALL_MS
        return self.now_ms


class _Tokens:
    """One token is good."""

    async def verify(self, token: str) -> TokenIdentity:
        if token != "good":
            raise TokenRefused("not good")
        return TokenIdentity("user", 60_000)


class _Inline:
    """Passwords without threads."""

    async def derive(self, derivation: Derivation) -> bytes:
        return derivation.derive()


class _Connection:
    """What a doorkeeper sees of a connection."""

    listener = "SASL"
    peer = address = "10.0.0.1"
    opened_s = 0.0
    items_max = REQUEST_ITEMS_MAX

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.client_id: str | None = None
        self.deadline_s: float | None = 10.0
        self.principal: Principal | None = None
        self.mechanism = ""
        self.audit = ListenerAudit(Audit(), self.listener)
        self.identity = Identity(ANONYMOUS, self.address)
        self.watched = False
        self.closed = False
        self.passed = 0
        self.gone: list[Any] = []

    @property
    def admitted(self) -> bool:
        return self.principal is not None

    def on_closed(self, call: Any) -> None:
        self.gone.append(call)

    def detain(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s

    def admit(self, principal: Principal, mechanism: str, *, watched: bool) -> None:
        self.principal, self.mechanism, self.watched = principal, mechanism, watched

    def pass_on(self, _frame: bytearray) -> bytes:
        expect(self.admitted, "nobody's frame is passed on who has not signed in")
        self.passed += 1
        return b""

    def refuse(self, _what: str, _why: str) -> object:
        self.closed = True
        return CLOSE

    def close(self, _why: str) -> None:
        self.closed = True

    close_after_responses = close


@cache
def _image() -> MetadataImage:
    records = [pb.MetadataRecord(cluster_secret=pb.ClusterSecretRecord(name="sign-in", value=b"s" * 32))]
    for mechanism in ScramMechanism:
        salted = mechanism.salted_password(b"pencil", b"salt", _ITERATIONS)
        made = credential(mechanism, b"salt", salted, _ITERATIONS)
        stored = pb.UserCredentialRecord(
            user="user",
            mechanism=mechanism,
            salt=made.salt,
            stored_key=made.stored_key,
            server_key=made.server_key,
            iterations=made.iterations,
            version=1,
        )
        records.append(pb.MetadataRecord(user_credential=stored))
    return MetadataImage().apply(records, 1)


def _versions(_connection: Any, header: RequestHeader, frame: bytearray) -> bytes:
    codec.decode_request(header, frame)
    return encode_api_versions_response(header, SUPPORTED)


@cache
def _desk() -> SignInDesk:
    log = structlog.wrap_logger(None, processors=[_drop])
    desk = SignInDesk(_image, KafkaMetrics(), log, _Clock(), tokens=_Tokens(), wall_ms=lambda: 1_000)
    desk.passwords = _Inline()  # type: ignore[assignment]
    return desk


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def _door(data: bytes) -> None:
    """A byte (whether sessions end), and frames with two bytes of length each."""
    desk, connection = _desk(), _Connection()
    desk.limits, desk.memo, desk.now_ms = LoginLimits(), PlainMemo(b"key"), _Clock()
    keeper = Doorkeeper(desk, MECHANISMS, 3_000 if data[:1] > b"\x7f" else 0, _versions)

    async def main() -> None:
        for frame in _frames(data[1:]):
            raw = "sign_in" in connection.state and connection.state["sign_in"].session.expects_raw_token
            if len(frame) < (0 if raw else 8) or connection.closed:
                return
            answer: Any = keeper.handle(connection, bytearray(frame))  # type: ignore[arg-type]
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is CLOSE:
                expect(connection.closed or not connection.admitted, "whoever is refused goes")
                return
            if not raw and not connection.passed:
                expect(answer[:4] == frame[4:8], "the answer to that request")
            if connection.admitted:
                expect(str(connection.principal) == "User:user", "who there is")
                if not connection.watched:
                    expect("sign_in" not in connection.state, "the doorkeeper has forgotten him")
                    return

    try:
        _loop().run_until_complete(main())
    finally:
        for call in connection.gone:
            call()


def _door_seeds() -> Iterator[bytes]:
    def put(key: int, version: int, **fields: Any) -> bytes:
        body = codec.encode_body(codec.build(codec.request_type(key, version), **fields))
        return bytes(request_header(key, version, 7, "client") + body)

    plain = b"\0user\0pencil"
    first = b"n,,n=user,r=abcdef"
    hello = put(ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    for ends in (b"\0", b"\xff"):
        for version in (0, 1, 2):
            shake = put(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            token = put(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=plain)
            yield ends + _framed(hello, shake, token, hello, shake, token)
        shake = put(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
        yield ends + _framed(shake, plain, hello)
        shake = put(ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
        for word in (b"good", b"bad"):
            token = put(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"n,,\x01auth=Bearer " + word + b"\x01\x01")
            yield ends + _framed(shake, token, put(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\x01"))
        for name in MECHANISMS[:2]:
            shake = put(ApiKey.SASL_HANDSHAKE, 1, mechanism=name)
            token = put(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first)
            yield ends + _framed(
                hello, shake, token, put(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"c=biws,r=abcdef,p=")
            )
            yield ends + _framed(
                put(ApiKey.SASL_HANDSHAKE, 0, mechanism=name), first, b"c=biws,r=abcdef,p=AAAA"
            )


# -- requests about users, ACLs and quotas -----------------------------------------------------------

_MAKES: Final = {
    "AlterAcls": alter_acls,
    "AlterQuotas": alter_quotas,
    "AlterUserCredentials": alter_user_credentials,
}


class _Everybody(AllowAll):
    """Rights are looked at, and everybody has them."""

    is_enabled = True


class _Calls:
    """The controllers, in this process."""

    def __init__(self) -> None:
        level = pb.MetadataRecord(feature=pb.FeatureRecord(name="metadata.level", level=2))
        cluster = pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))
        self.image = MetadataImage().apply([cluster, level], 1)
        self.metadata = self

    async def call(self, method: str, request: Any, _timeout: int = 0, *, wait: bool = True) -> Any:
        sent = type(request).FromString(request.SerializeToString())
        made: Any = _MAKES[method](Context(self.image, random.Random(0)), sent)  # type: ignore[operator]
        if made.reply.error.code:
            raise PenstockError(made.reply.error.code, made.reply.error.message)
        if made.records and wait:
            self.image = self.image.apply(made.records, self.image.version + 1)
            copied = [pb.MetadataRecord.FromString(r.SerializeToString()) for r in made.records]
            expect(copied == list(made.records), "records are read as they were written")
        return made.reply


_KEYS: Final = {
    ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}  # fmt: skip
_VERSIONS: Final = [(key, version) for key, version in VERSIONS if key in _KEYS]


class _Client:
    identity = Identity(ANONYMOUS, "10.0.0.1")
    principal = ANONYMOUS


def _requests(data: bytes) -> None:
    """Frames with two bytes of length, the first byte of each chooses API and version."""

    async def main() -> None:
        calls: Any = _Calls()
        tools = (calls, _Everybody(), KafkaMetrics(), LoopTurns())
        acls, users, quotas = Acls(*tools), Users(*tools), Quotas(*tools)
        handlers: dict[int, Any] = {
            ApiKey.DESCRIBE_ACLS: acls.describe,
            ApiKey.CREATE_ACLS: acls.create,
            ApiKey.DELETE_ACLS: acls.delete,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe,
            ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter,
        }
        for frame in _frames(data):
            if not frame:
                continue
            key, version = _VERSIONS[frame[0] % len(_VERSIONS)]
            whole = bytearray(request_header(key, version, 9, "client") + frame[1:])
            try:
                header = parse_request_header(whole)
                answer = await handlers[key](_Client(), header, whole)
            except (Malformed, PenstockError):
                continue
            codec.decode_response(key, version, answer)
        decided = [binding_of(row) for row in calls.image.security.acls]
        expect(None not in decided, "what was taken is decided by")

    _loop().run_until_complete(main())


def _requests_seeds() -> Iterator[bytes]:
    bodies = [bytes([index]) + request_body(key, version) for index, (key, version) in enumerate(_VERSIONS)]
    for body in bodies:
        yield _framed(body)
    yield _framed(*bodies)
    acl = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    for index, (key, version) in enumerate(_VERSIONS):
        if key == ApiKey.CREATE_ACLS:
            kind = codec.entity_type(key, version, "AclCreation", request=True)
            made = codec.build(codec.request_type(key, version), creations=(codec.build(kind, **acl),))
            yield _framed(bytes([index]) + bytes(codec.encode_body(made)))


TARGETS: Final = [
    Target("sasl.frames", _door, (), _door_seeds, share=20, input_bytes_max=1024),
    Target("security.requests", _requests, (), _requests_seeds, share=20, input_bytes_max=2048),
]
