"""The native API's door: who is let in, what each method takes, and what ends a call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from penstock_core.metadata.image import Endpoint
from penstock_core.metadata.security import CredentialKey, RefusedCertificate
from penstock_core.process.native_account import Account
from penstock_core.security.client_file import ClientFile
from penstock_core.security.oauthbearer import TokenIdentity, TokenRefused
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.scram import ScramMechanism
from penstock_frontend.authorizer import CLUSTER_NAME, AllowAll, Identity, Operation, ResourceType
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.callers import CallerDoor
from penstock_frontend.sign_in.certified import Holders
from penstock_frontend.sign_in.credentials import Reliance
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.old_news import OldNews
from penstock_gateway.rpc.guard import RIGHTS, Guard
from penstock_gateway.rpc.service import GatewayService
from penstock_proto.v1 import data_pb2, gateway_pb2, gateway_pb2_grpc, sinks_pb2
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_proto.v1 import metadata_pb2 as records
from penstock_runtime.door_settings import GrpcDoorSettings
from penstock_runtime.grpc_server import serve
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import wall_ms
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.refused import RefusedCertificates, serial_in_pem
from penstock_runtime.security.role_tls import HTTP2
from support.partial_gateway import PartialGateway
from support.secure import ListenerFiles
from support.sign_in import Metadata, removal, user_record
from support.waiting import eventually

Rig = Any
Stub = Any
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
ROWS = {name: right for name, right in RIGHTS.items() if name.startswith("/penstock.v1.Gateway/")}
"""Those of the service that is looked at here; test_admin looks at the other one."""


class Asked(AllowAll):
    """Notes what is asked, and allows what `right` says."""

    is_enabled = True

    def __init__(self, right: Callable[[Identity, Operation], bool]) -> None:
        self.right = right
        self.questions: list[tuple[str, str, Operation, ResourceType, str]] = []

    def allows(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.questions.append((str(who.principal), who.host, operation, kind, name))
        return self.right(who, operation)

    authorize = allows

    def permitted(self, who: Identity, operation: Operation, kind: ResourceType, names: Any) -> list[str]:
        return [name for name in names if self.allows(who, operation, kind, name)]


class Jwts:
    """An issuer's keys."""

    def __init__(self) -> None:
        self.good: dict[str, TokenIdentity] = {}
        self.asked = 0

    async def verify(self, token: str) -> TokenIdentity:
        self.asked += 1
        if token not in self.good:
            raise TokenRefused("not one of those")
        return self.good[token]


class World:
    """Users, a door, and a server behind it."""

    def __init__(self, rig: Rig, **settings: Any) -> None:
        self.rig = rig
        self.metadata = Metadata()
        self.key(1)
        self.metadata.apply(user_record("alice", "secret"))
        self.lifecycle = Lifecycle("gateway")
        self.jwts = Jwts()
        self.now_ms = wall_ms()
        self.news_age_ms = 0
        self.desk = self.new_desk()
        self.refused = RefusedCertificates()
        self.settings = GrpcDoorSettings(**{"security": "SASL_PLAINTEXT", **settings})
        self.door = self.new_door(self.desk)

    def new_desk(self) -> SignInDesk:
        return SignInDesk(
            lambda: self.metadata.image,
            KafkaMetrics.of(self.lifecycle),
            self.lifecycle.log,
            tokens=self.jwts,
            wall_ms=lambda: self.now_ms,
        )

    def new_door(self, desk: SignInDesk) -> CallerDoor:
        return CallerDoor(
            "grpc",
            self.settings,
            desk if self.settings.has_sasl else None,
            lambda: self.metadata.image,
            self.settings.offered,
            token_lifetime_ms=self.settings.token_lifetime_ms,
            news=OldNews(lambda: self.news_age_ms, 5_000, 30_000),
            holders=Holders(self.refused),
        )

    def key(self, number: int) -> None:
        secret = records.ClusterSecretRecord(name=f"session-token:{number}", value=bytes([number]) * 32)
        self.apply(records.MetadataRecord(cluster_secret=secret))

    def apply(self, *changes: records.MetadataRecord) -> None:
        old, new = self.metadata.apply(*changes)
        if hasattr(self, "door"):
            self.door.present.on_metadata(old, new)

    @contextlib.asynccontextmanager
    async def serving(self, door: CallerDoor | None = None, files: ListenerTlsFiles | None = None) -> Any:
        door = door or self.door
        service = GatewayService(self.rig.relay, lambda: Endpoint("", "127.0.0.1", 9094), door=door)
        server, endpoint = await serve(
            "127.0.0.1:0",
            service.add_to,
            allow_insecure_bind=False,
            door=files,
            interceptors=[Guard(door, lambda: self.now_ms)],
        )
        try:
            yield endpoint.address
        finally:
            await server.stop(None)

    async def token(self, address: str, password: str = "secret", user: str = "alice", **words: str) -> Any:
        """The metadata of a client that signs in."""
        text = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
        } | words
        account = Account(ClientFile.parse("\n".join(f"{k}={v}" for k, v in text.items()), "test"))

        def sign_in() -> Any:
            with grpc.insecure_channel(address) as channel:
                return account.metadata(gateway_pb2_grpc.GatewayStub(channel).Authenticate)

        return await asyncio.to_thread(sign_in)


@pytest.fixture
def world(rig: Rig) -> World:
    return World(rig)


@pytest_asyncio.fixture
async def stub(world: World) -> AsyncIterator[Stub]:
    async with world.serving() as address, grpc.aio.insecure_channel(address) as channel:
        made = gateway_pb2_grpc.GatewayStub(channel)
        made.address = address  # type: ignore[attr-defined]
        yield made


async def end_of(call: Any) -> None:
    async with asyncio.timeout(60):
        if not hasattr(call, "read"):
            await call
            return
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await end_of(call)
    return caught.value.code(), caught.value.details() or ""


def calls(stub: Stub, metadata: Any = None) -> dict[str, Any]:
    """One call of each method that takes a right."""

    async def batches() -> AsyncIterator[pb.ProduceRequest]:
        yield pb.ProduceRequest(request_id=1, topic="t", partition=0, records=b"x", acks=-1)

    queries = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", timestamp_ms=-1)])
    wanted = data_pb2.FetchRangeRequest(topic="t", to_offset=-1)
    unit = sinks_pb2.SinkUnit(sink="t", query="q")
    triple = sinks_pb2.StageTriple(transactional_id="t-0-0-0")
    return {
        "BeginStage": lambda: stub.BeginStage(sinks_pb2.BeginStageRequest(unit=unit), metadata=metadata),
        "CommitUnit": lambda: stub.CommitUnit(sinks_pb2.CommitUnitRequest(unit=unit), metadata=metadata),
        "AbortStage": lambda: stub.AbortStage(
            sinks_pb2.AbortStageRequest(sink="t", triple=triple), metadata=metadata
        ),
        "DescribeSink": lambda: stub.DescribeSink(sinks_pb2.DescribeSinkRequest(sink="t"), metadata=metadata),
        "ListSinks": lambda: stub.ListSinks(sinks_pb2.ListSinksRequest(), metadata=metadata),
        "Describe": lambda: stub.Describe(pb.DescribeRequest(topics=["t"]), metadata=metadata),
        "ListOffsets": lambda: stub.ListOffsets(queries, metadata=metadata),
        "SizeRanges": lambda: stub.SizeRanges(
            pb.SizeRangesRequest(ranges=[pb.OffsetRange(topic="t", end=1)]), metadata=metadata
        ),
        "EpochEnds": lambda: stub.EpochEnds(
            pb.EpochEndsRequest(queries=[pb.EpochQuery(topic="t")]), metadata=metadata
        ),
        "GroupOffsets": lambda: stub.GroupOffsets(pb.GroupOffsetsRequest(group="t"), metadata=metadata),
        "CommitGroup": lambda: stub.CommitGroup(
            pb.CommitGroupRequest(group="t", offsets=[pb.GroupOffset(topic="t")]), metadata=metadata
        ),
        "CreateTopic": lambda: stub.CreateTopic(pb.CreateTopicRequest(name="t"), metadata=metadata),
        "Produce": lambda: stub.Produce(batches(), metadata=metadata),
        "FetchRange": lambda: stub.FetchRange(wanted, metadata=metadata),
    }


def test_every_method_of_the_contract_has_a_row() -> None:
    service = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]
    assert {f"/{service.full_name}/{method.name}" for method in service.methods} == ROWS.keys()
    assert [name for name, right in RIGHTS.items() if right is None] == ["/penstock.v1.Gateway/Authenticate"]


async def test_without_a_token_no_method_answers(stub: Stub) -> None:
    for metadata in (
        None,
        (("authorization", "Bearer pst1.nonsense"),),
        (("authorization", "Basic YWxpY2U6c2VjcmV0"),),
        (("authorization", "Bearer a.b.c"),),
    ):
        for name, call in calls(stub, metadata).items():
            status, words = await status_of(call())
            assert (status, name) == (UNAUTHENTICATED, name)
            assert "secret" not in words


async def test_each_method_asks_for_its_right_with_the_users_name(
    rig: Rig, world: World, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(lambda who, operation: False)
    monkeypatch.setattr(rig.relay, "authorizer", asked)
    metadata = await world.token(stub.address)
    made = calls(stub, metadata)
    assert {f"/penstock.v1.Gateway/{name}" for name in made} | {
        "/penstock.v1.Gateway/Authenticate"
    } == ROWS.keys()
    # What it lists is looked through, and there is nothing (test_units has the rest).
    await made.pop("ListSinks")()
    assert asked.questions == []
    for name, begin in made.items():
        asked.questions.clear()
        right = RIGHTS[f"/penstock.v1.Gateway/{name}"]
        assert right is not None
        call = begin()
        try:
            answer = [each async for each in call] if hasattr(call, "__aiter__") else [await call]
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        else:
            codes = {ResourceType.TRANSACTIONAL_ID: 53, ResourceType.GROUP: 30}
            assert f"code: {codes.get(right.kind, 29)}" in str(answer)
        expected = {("User:alice", "127.0.0.1", right.operation, right.kind, "t")}
        if name == "EpochEnds":  # who may act for the cluster may ask that of any topic (KIP-320)
            expected.add(
                ("User:alice", "127.0.0.1", Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
            )
        if name == "CreateTopic":  # who may make any may make this one (Kafka: ControllerApis.createTopics)
            expected.add(("User:alice", "127.0.0.1", Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME))
        assert set(asked.questions) == expected, name
    assert rig.nodes[1].logs == {}
    assert rig.nodes[1].ranges == []


async def test_a_method_without_a_row_is_for_nobody(rig: Rig) -> None:
    world = World(rig, security="PLAINTEXT")
    service = GatewayService(rig.relay, lambda: Endpoint("", "127.0.0.1", 9094), door=world.door)
    rights = {k: v for k, v in RIGHTS.items() if "Describe" not in k}
    server, endpoint = await serve(
        "127.0.0.1:0",
        service.add_to,
        allow_insecure_bind=False,
        interceptors=[Guard(world.door, wall_ms, rights)],
    )
    async with grpc.aio.insecure_channel(endpoint.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        assert (await status_of(stub.Describe(pb.DescribeRequest())))[0] is grpc.StatusCode.PERMISSION_DENIED
        await stub.ListOffsets(pb.ListOffsetsRequest())
    await server.stop(None)


async def test_a_token_of_one_gateway_is_good_at_another(world: World, stub: Stub) -> None:
    other = world.new_door(world.new_desk())
    metadata = await world.token(stub.address)
    async with world.serving(other) as address, grpc.aio.insecure_channel(address) as channel:
        answer = await gateway_pb2_grpc.GatewayStub(channel).Describe(
            pb.DescribeRequest(topics=["t"]), metadata=metadata
        )
        assert [topic.error.code for topic in answer.topics] == [0]


async def test_a_token_dies_with_the_password_and_with_its_time(world: World, stub: Stub) -> None:
    metadata = await world.token(stub.address)
    await stub.Describe(pb.DescribeRequest(), metadata=metadata)
    world.now_ms += world.settings.token_lifetime_ms
    assert (await status_of(stub.Describe(pb.DescribeRequest(), metadata=metadata)))[0] is UNAUTHENTICATED
    world.now_ms -= world.settings.token_lifetime_ms
    await stub.Describe(pb.DescribeRequest(), metadata=metadata)
    world.apply(user_record("alice", "secret"))  # the same password, set anew
    assert (await status_of(stub.Describe(pb.DescribeRequest(), metadata=metadata)))[0] is UNAUTHENTICATED
    metadata = await world.token(stub.address)
    world.key(2)
    await stub.Describe(pb.DescribeRequest(), metadata=metadata)
    world.apply(removal("alice"))
    assert (await status_of(stub.Describe(pb.DescribeRequest(), metadata=metadata)))[0] is UNAUTHENTICATED


async def test_calls_under_way_end_with_the_password(rig: Rig, world: World, stub: Stub) -> None:
    metadata = await world.token(stub.address)
    rig.nodes[1].range_script = [[data_pb2.FetchRangeResponse(next_offset=4, high_watermark=10), "hang"]]
    ranged = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", to_offset=-1), metadata=metadata)
    assert (await ranged.read()).next_offset == 4
    waits = stub.ListOffsets(
        pb.ListOffsetsRequest(
            queries=[pb.OffsetQuery(topic="t", timestamp_ms=-1, known_offset=99)], wait_ms=300_000
        ),
        metadata=metadata,
    )
    produces = stub.Produce(metadata=metadata)
    await produces.write(pb.ProduceRequest(request_id=1, topic="t", partition=0, records=b"x", acks=-1))
    assert (await produces.read()).error.code == 0
    await eventually(lambda: len(world.door.present) == 3, "three calls")
    world.apply(removal("alice"))
    for call in (ranged, waits, produces):
        status, words = await status_of(call)
        assert status is UNAUTHENTICATED
        assert "deleted" in words
    await eventually(lambda: len(world.door.present) == 0, "all over")


async def test_a_gateway_that_is_cut_off_sends_clients_elsewhere(rig: Rig, world: World, stub: Stub) -> None:
    metadata = await world.token(stub.address)
    world.news_age_ms = 6_000
    with pytest.raises(grpc.RpcError, match="sign_in_stale_ms"):
        await world.token(stub.address)
    await stub.Describe(pb.DescribeRequest(), metadata=metadata)
    rig.nodes[1].range_script = [["hang"]]
    ranged = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", to_offset=-1), metadata=metadata)
    await eventually(lambda: len(world.door.present) == 1, "it is under way")
    world.news_age_ms = 31_000
    world.door.present.end_all("cut off")
    assert await status_of(ranged) == (grpc.StatusCode.UNAVAILABLE, "cut off")
    status, words = await status_of(stub.Describe(pb.DescribeRequest(), metadata=metadata))
    assert status is grpc.StatusCode.UNAVAILABLE
    assert "rights_stale_ms" in words


async def test_wrong_passwords_and_unknown_users_hear_the_same(world: World, stub: Stub) -> None:
    said = set()
    for name, password in (("alice", "wrong"), ("nobody", "secret")):
        with pytest.raises(grpc.RpcError) as caught:
            await world.token(stub.address, password, name)
        said.add((caught.value.code(), caught.value.details()))
    ((status, words),) = said
    assert status is UNAUTHENTICATED
    assert "invalid credentials" in str(words)
    metrics = KafkaMetrics.of(world.lifecycle).sign_ins
    assert metrics["grpc", "SCRAM-SHA-256", "failure"] == 2


@pytest.mark.parametrize(
    ("mechanism", "message", "says"),
    [
        ("PLAIN", b"\0alice\0secret", "not offered"),
        ("OAUTHBEARER", b"n,,", "not offered"),
        ("", b"", "not offered"),
        ("SCRAM-SHA-256", b"\xff" * 20_000, "at most"),
        ("SCRAM-SHA-256", b"nonsense", "invalid credentials"),
    ],
)
async def test_what_is_no_sign_in(stub: Stub, mechanism: str, message: bytes, says: str) -> None:
    async def requests() -> AsyncIterator[pb.AuthenticateRequest]:
        yield pb.AuthenticateRequest(mechanism=mechanism, message=message)

    _, words = await status_of(stub.Authenticate(requests()))
    assert says in str(words)


async def test_a_server_that_does_not_know_the_password_gets_no_calls(rig: Rig) -> None:
    class Impostor(PartialGateway):
        async def Authenticate(self, requests: Any, context: Any) -> Any:  # noqa: N802
            nonce = (await anext(aiter(requests))).message.partition(b"r=")[2]
            yield pb.AuthenticateResponse(message=b"r=" + nonce + b"x,s=c2FsdA==,i=4096")
            yield pb.AuthenticateResponse(message=b"v=" + b"A" * 43 + b"=", token="pst1.x")

        Describe = ListOffsets = Produce = FetchRange = Authenticate  # type: ignore[assignment]

    server, endpoint = await serve(
        "127.0.0.1:0",
        lambda s: gateway_pb2_grpc.add_GatewayServicer_to_server(Impostor(), s),
        allow_insecure_bind=False,
    )
    with pytest.raises(SaslFailure, match="does not know the password"):
        await World(rig).token(endpoint.address)
    await server.stop(None)


async def test_a_jwt_is_looked_at_once_a_while_and_its_end_ends_calls(rig: Rig) -> None:
    world = World(rig, mechanisms=("OAUTHBEARER",))
    world.jwts.good["a.b.c"] = TokenIdentity("bob", world.now_ms + 3_000)
    metadata = (("authorization", "Bearer a.b.c"),)
    async with world.serving() as address, grpc.aio.insecure_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for _ in range(5):
            await stub.Describe(pb.DescribeRequest(), metadata=metadata)
        assert world.jwts.asked == 1
        rig.nodes[1].range_script = [["hang"]]
        ranged = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", to_offset=-1), metadata=metadata)
        status, words = await status_of(ranged)
        assert status is UNAUTHENTICATED
        assert "expired" in str(words)
        world.now_ms += 3_000
        del world.jwts.good["a.b.c"]
        assert (await status_of(stub.Describe(pb.DescribeRequest(), metadata=metadata)))[0] is UNAUTHENTICATED


async def test_a_certificate_is_a_user_and_new_files_are_used(rig: Rig, tmp_path: Path) -> None:
    made = ListenerFiles(tmp_path)
    world = World(
        rig,
        security="SSL",
        tls=made.table("required"),
        principal_mapping_rules="RULE:^.*CN=([^,]+).*$/$1/L",
    )
    asked = Asked(lambda who, operation: True)
    files = ListenerTlsFiles("grpc", world.settings.tls, protocol=HTTP2)  # type: ignore[arg-type]
    cert, key = made.client("Alice")

    async def describe(address: str, with_certificate: bool) -> None:
        shown = (key.read_bytes(), cert.read_bytes()) if with_certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(made.ca.read_bytes(), *shown)
        async with grpc.aio.secure_channel(address.replace("127.0.0.1", "localhost"), credentials) as channel:
            await gateway_pb2_grpc.GatewayStub(channel).Describe(pb.DescribeRequest(topics=["t"]), timeout=30)

    rig.relay.authorizer = asked
    async with world.serving(files=files) as address:
        await describe(address, True)
        assert {who for who, *_ in asked.questions} == {"User:alice"}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await describe(address, False)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(address) as plain:
            status, _ = await status_of(gateway_pb2_grpc.GatewayStub(plain).Describe(pb.DescribeRequest()))
            assert status is grpc.StatusCode.UNAVAILABLE
        before = files.current
        made.renew()
        assert files.reload()
        assert files.current is not before
        await describe(address, True)


@pytest.mark.parametrize("security", ["SSL", "SASL_SSL"])
async def test_calls_end_with_the_certificate_that_their_client_showed(
    rig: Rig, tmp_path: Path, security: str
) -> None:
    """Also where a password says who it is, and the certificate only that it may come."""
    made = ListenerFiles(tmp_path)
    rules = {"principal_mapping_rules": "RULE:^.*CN=([^,]+).*$/$1/L"} if security == "SSL" else {}
    world = World(rig, security=security, tls=made.table("required"), **rules)
    files = ListenerTlsFiles("grpc", world.settings.tls, protocol=HTTP2)  # type: ignore[arg-type]
    chains = {name: made.client(name) for name in ("alice", "bob")}
    rig.nodes[1].range_script = [
        [data_pb2.FetchRangeResponse(next_offset=4, high_watermark=10), "hang"] for _ in chains
    ]
    metadata: tuple[tuple[str, str], ...] = ()
    if security == "SASL_SSL":
        assert world.door.tokens is not None
        key = CredentialKey("alice", ScramMechanism.SHA_256)
        version = world.desk.credentials.version(key)
        assert version is not None
        metadata = (("authorization", f"Bearer {world.door.tokens.issue(Reliance(key, version))}"),)
    async with world.serving(files=files) as address, contextlib.AsyncExitStack() as stack:
        reads: dict[str, Any] = {}
        stubs: dict[str, Any] = {}
        for name, (cert, key_file) in chains.items():
            credentials = grpc.ssl_channel_credentials(
                made.ca.read_bytes(), key_file.read_bytes(), cert.read_bytes()
            )
            channel = grpc.aio.secure_channel(address.replace("127.0.0.1", "localhost"), credentials)
            stubs[name] = gateway_pb2_grpc.GatewayStub(await stack.enter_async_context(channel))
            reads[name] = stubs[name].FetchRange(
                data_pb2.FetchRangeRequest(topic="t", to_offset=-1), metadata=metadata
            )
            assert (await reads[name].read()).next_offset == 4
        assert len(world.door.present) == 2
        world.refused.take({serial_in_pem(chains["alice"][0].read_bytes()): RefusedCertificate("stolen", 0)})
        status, words = await status_of(reads["alice"])
        assert status is UNAUTHENTICATED
        assert "stolen" in words
        # What it begins now is refused, though its connection stays.
        status, words = await status_of(stubs["alice"].Describe(pb.DescribeRequest(), metadata=metadata))
        assert (status, "stolen" in words) == (UNAUTHENTICATED, True)
        await stubs["bob"].Describe(pb.DescribeRequest(), metadata=metadata)
        assert len(world.door.present) == 1
        reads["bob"].cancel()
        await eventually(lambda: len(world.door.present) == 0, "all over")


async def test_a_range_ends_when_the_right_to_read_is_taken_away(
    rig: Rig, world: World, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = True
    monkeypatch.setattr(rig.relay, "authorizer", Asked(lambda who, operation: may_read))
    go_on = asyncio.Event()
    rig.nodes[1].range_script = [
        [
            data_pb2.FetchRangeResponse(next_offset=4, high_watermark=10),
            go_on,
            data_pb2.FetchRangeResponse(next_offset=10, high_watermark=10, done=True),
        ]
    ]
    metadata = await world.token(stub.address)
    ranged = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", to_offset=-1), metadata=metadata)
    assert (await ranged.read()).next_offset == 4
    may_read = False
    go_on.set()
    status, words = await status_of(ranged)
    assert (status, "not allowed to read topic t" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)


async def test_nobody_signs_in_at_a_plaintext_door(rig: Rig) -> None:
    world = World(rig, security="PLAINTEXT")
    async with world.serving() as address:
        with pytest.raises(grpc.RpcError, match="its security is PLAINTEXT"):
            await world.token(address)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"security": "SASL_SSL"}, "needs tls"),
        ({"security": "TLS"}, "one of PLAINTEXT"),
        ({"mechanisms": ["PLAIN"]}, "no use for mechanisms"),
        ({"security": "SASL_PLAINTEXT", "mechanisms": ["GSSAPI"]}, "OAUTHBEARER"),
        ({"security": "SASL_PLAINTEXT", "token_lifetime_ms": 3_600_000}, "less than or equal"),
        ({"principal_mapping_rules": "RULE:x/y/"}, "principal_mapping_rules are for"),
        (
            {
                "security": "SSL",
                "tls": {"cert": "c", "key": "k", "client_ca": "a", "client_auth": "requested"},
            },
            "none or required",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GrpcDoorSettings(**settings)


def test_mechanisms_are_those_of_a_listener() -> None:
    assert GrpcDoorSettings(security="SASL_PLAINTEXT").offered == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert ScramMechanism.SHA_256.mechanism_name in GrpcDoorSettings(security="SASL_PLAINTEXT").offered
