"""The native API and HTTP of real gateways with TLS, users and rights: who gets in, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import AclOperation

from penstock_proto.v1 import gateway_pb2 as pb
from penstock_proto.v1 import gateway_pb2_grpc
from support.doors import PASSWORD, TIMEOUT_S, Doors, doors_cluster
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors_cluster(tmp_path_factory.mktemp("doors")) as made:
        yield made


def status(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    assert PASSWORD not in str(error)
    code: grpc.StatusCode = error.code()
    return code


def test_who_has_rights_produces_and_reads_and_others_do_not(doors: Doors) -> None:
    alice, nobody = doors.client("alice"), doors.client("nobody")
    assert alice.produce("open", b"hello") == 0
    assert b"hello" in alice.read("open")
    assert nobody.produce("open", b"hello") == 29
    assert status(lambda: nobody.read("open")) is DENIED
    described = nobody.stub.Describe(pb.DescribeRequest(all_topics=True), metadata=nobody.metadata())
    assert list(described.topics) == []
    queries = [pb.OffsetQuery(topic="open", timestamp_ms=-1)]
    asked = nobody.stub.ListOffsets(pb.ListOffsetsRequest(queries=queries), metadata=nobody.metadata())
    assert [result.error.code for result in asked.results] == [29]


def test_without_a_token_or_tls_nothing_is_told(doors: Doors) -> None:
    alice = doors.client("alice")
    assert status(lambda: alice.stub.Describe(pb.DescribeRequest())) is UNAUTHENTICATED
    forged = (("authorization", "Bearer pst1.AAAA"),)
    assert status(lambda: alice.read("open", forged)) is UNAUTHENTICATED
    with grpc.insecure_channel(doors.addresses("grpc")[0]) as plain:
        stub: Any = gateway_pb2_grpc.GatewayStub(plain)
        assert status(lambda: stub.Describe(pb.DescribeRequest(), timeout=5)) in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    for user, password in (("alice", "wrong"), ("mallory", PASSWORD)):
        stranger = doors.client(user, password=password)
        assert status(stranger.metadata) is UNAUTHENTICATED


def test_a_token_is_good_at_both_gateways_until_it_ends(doors: Doors) -> None:
    metadata = doors.client("alice").metadata()
    other = doors.client("alice", gateway=1)
    assert other.produce("open", b"there", metadata) == 0

    def ended() -> bool:
        call: Any = other.stub.Describe.future(pb.DescribeRequest(), metadata=metadata, timeout=TIMEOUT_S)
        return bool(call.code() is UNAUTHENTICATED)

    wait_for(ended, "the token ends", TIMEOUT_S)
    assert b"there" in other.read("open")  # the account has another one by now


def test_another_password_ends_tokens_and_what_goes_on(doors: Doors) -> None:
    doors.set_user("carol", PASSWORD)
    doors.allow("carol", AclOperation.ALL, "open")
    clients = [doors.client("carol", gateway) for gateway in (0, 1)]
    wait_for(lambda: all(c.produce("open", b"c") == 0 for c in clients), "carol has her rights", TIMEOUT_S)
    waiting = []
    for client in clients:
        query = pb.OffsetQuery(topic="open", timestamp_ms=-1, known_offset=1 << 40)
        request = pb.ListOffsetsRequest(queries=[query], wait_ms=300_000)
        waiting.append(client.stub.ListOffsets.future(request, metadata=client.metadata(), timeout=300))
    tokens = [client.metadata() for client in clients]
    doors.set_user("carol", "another one")
    for call in waiting:
        assert status(lambda call=call: call.result(TIMEOUT_S)) is UNAUTHENTICATED
    for client, token in zip(clients, tokens, strict=True):
        assert status(lambda c=client, t=token: c.read("open", t)) is UNAUTHENTICATED
    again = doors.client("carol", password="another one")
    assert again.produce("open", b"again") == 0


def test_http_with_rights_and_without(doors: Doors) -> None:
    for path in ("/v1/cluster", "/v1/topics", "/v1/topics/open", "/metrics"):
        code, body = doors.get(path)
        assert (code, set(body)) == (401, {"error", "hint"})
        assert doors.get(path, "alice", "wrong")[0] == 401
        assert doors.get(path, "alice")[0] == 200
    assert [t["name"] for t in doors.get("/v1/topics", "alice")[1]["topics"]] == ["open"]
    assert doors.get("/v1/topics", "nobody")[1]["topics"] == []
    for path in ("/v1/cluster", "/v1/topics/open", "/v1/topics/other", "/metrics"):
        code, body = doors.get(path, "nobody")
        assert (code, set(body)) == (403, {"error", "hint"})
    metrics = doors.get("/metrics", "alice")[1]
    assert 'penstock_kafka_sign_ins_total{listener="http",mechanism="PLAIN",outcome="failure"}' in metrics


def test_no_password_and_no_token_is_in_any_file_of_the_cluster(doors: Doors) -> None:
    token = doors.client("alice").metadata()[0][1].removeprefix("Bearer ")
    assert doors.get("/v1/cluster", "alice")[0] == 200
    searched = 0
    for path in (doors.directory / "cluster").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            searched += len(content)
            assert PASSWORD.encode() not in content, path
            assert token.encode() not in content, path
    assert searched > 1_000
