"""Changes as the audit log tells them: complete, with who asked and what came of it, and without keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from penstock_controller.rpc.changes import CHANGES, lines, told_to
from penstock_core.errors import ErrorCode
from penstock_core.security.audit import Event, line
from penstock_core.security.identity import PeerIdentity
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2
from penstock_runtime.audit import Audit, Expand
from penstock_runtime.security.callers import set_caller

NOT_CHANGES = {
    "AllocateProducerIds",  # each block of them
    "AlterPartitions",  # leaders tell of in-sync replicas
    "CheckCluster",
    "DescribeCapacity",
    "DescribeNodes",
    "DescribeOperations",
    "DescribeProcess",
    "DescribeQuorum",
    "ExecuteOperation",  # asks each second; who begins or resumes an operation is told of
    "GatewaySession",
    "NodeSession",
    "PlanOperation",
    "ReadEvents",
    "WatchMetadata",
}
DENIED = common.Error(code=ErrorCode.POLICY_VIOLATION, message="no")


def told(method: str, request: Any, reply: Any) -> list[dict[str, object]]:
    """Without what all have in common."""
    found = []
    for event in lines(method, CHANGES[method], request, reply):
        assert (event["event"], event["api"]) == ("change", method)
        said = json.loads(line(event, "controller/1", 0))
        for common_one in ("time", "process", "event", "api"):
            del said[common_one]
        found.append(said)
    return found


def test_every_method_is_told_of_or_changes_nothing_that_somebody_asked_for() -> None:
    methods = {method.name for method in api.DESCRIPTOR.services_by_name["Controller"].methods}
    assert CHANGES.keys() | NOT_CHANGES >= methods
    assert not CHANGES.keys() & NOT_CHANGES
    assert CHANGES.keys() <= methods


def test_topics() -> None:
    request = api.CreateTopicsRequest(
        topics=[
            api.NewTopic(name="a", configs={"retention.ms": "5", "cleanup.policy": "compact"}),
            api.NewTopic(name="b"),
        ],
        principal="User:alice",
    )
    reply = api.CreateTopicsResponse(
        topics=[api.CreatedTopic(name="a", partition_count=3), api.CreatedTopic(name="b", error=DENIED)],
        version=7,
    )
    common_part = {"principal": "User:alice", "type": "topic"}
    assert told("CreateTopics", request, reply) == [
        {
            **common_part,
            "outcome": "ok",
            "resource": "a",
            "partitions": 3,
            "configs": "cleanup.policy=compact,retention.ms=5",
            "version": 7,
        },
        {**common_part, "outcome": "policy_violation", "resource": "b", "partitions": 0},
    ]
    topic_id = bytes(range(16))
    deleted = api.DeleteTopicsRequest(topics=[api.TopicRef(name="a"), api.TopicRef(topic_id=topic_id)])
    answer = api.DeleteTopicsResponse(
        topics=[api.DeletedTopic(name="a"), api.DeletedTopic(topic_id=topic_id, error=DENIED)], version=8
    )
    assert [(each["resource"], each["outcome"]) for each in told("DeleteTopics", deleted, answer)] == [
        ("a", "ok"),
        (topic_id.hex(), "policy_violation"),
    ]
    more = api.CreatePartitionsRequest(topics=[api.NewPartitions(name="a", total_count=9)])
    (said,) = told(
        "CreatePartitions", more, api.CreatePartitionsResponse(topics=[api.CreatedTopic()], version=9)
    )
    assert (said["partitions"], said["version"]) == (9, 9)


def test_a_call_that_failed_as_a_whole_says_so_of_each_thing() -> None:
    request = api.CreateTopicsRequest(topics=[api.NewTopic(name="a"), api.NewTopic(name="b")])
    said = told("CreateTopics", request, api.CreateTopicsResponse(error=DENIED))
    assert [each["outcome"] for each in said] == ["policy_violation", "policy_violation"]


def test_configs() -> None:
    change = api.ConfigChange
    request = api.AlterConfigsRequest(
        resources=[
            api.ConfigResource(
                resource_type="topic",
                resource_name="a",
                changes=[
                    change(key="retention.ms", value="5"),
                    change(key="segment.bytes"),
                    change(key="l", value="x", operation=api.CONFIG_OPERATION_APPEND),
                    change(key="l", value="y", operation=api.CONFIG_OPERATION_SUBTRACT),
                ],
            )
        ]
    )
    (said,) = told("AlterConfigs", request, api.AlterConfigsResponse(results=[common.Error()], version=3))
    assert said["configs"] == "retention.ms=5,-segment.bytes,l+=x,l-=y"


def test_users_without_their_keys() -> None:
    request = api.AlterUserCredentialsRequest(
        changes=[
            api.UserCredentialChange(
                user="alice",
                mechanism=1,
                salt=b"the salt",
                stored_key=b"stored key",
                server_key=b"server key",
                iterations=4096,
            ),
            api.UserCredentialChange(user="bob", mechanism=2, remove=True),
        ],
        principal="User:admin",
    )
    reply = api.AlterUserCredentialsResponse(results=[common.Error(), DENIED], version=5)
    said = told("AlterUserCredentials", request, reply)
    assert said == [
        {
            "principal": "User:admin",
            "outcome": "ok",
            "type": "user",
            "operation": "set",
            "resource": "alice",
            "mechanism": "SCRAM-SHA-256",
            "iterations": 4096,
            "version": 5,
        },
        {
            "principal": "User:admin",
            "outcome": "policy_violation",
            "type": "user",
            "operation": "remove",
            "resource": "bob",
            "mechanism": "SCRAM-SHA-512",
        },
    ]
    assert not [secret for secret in ("salt", "key") if secret in str(said)]


def test_acls_and_quotas() -> None:
    row = pb.AclRecord(
        resource_type=2,
        pattern_type=4,
        resource_name="flights",
        principal="User:alice",
        host="*",
        operation=3,
        permission=3,
    )
    request = api.AlterAclsRequest(add=[row], remove=[api.AclFilter()])
    reply = api.AlterAclsResponse(
        added=[common.Error()], removed=[api.RemovedAcls(acls=[row, row])], version=4
    )
    said = told("AlterAcls", request, reply)
    assert [(each["operation"], each["resource"], each["rule"]) for each in said] == [
        ("add", "topic:flights", "allow User:alice read from *, prefixed"),
        ("remove", "topic:flights", "allow User:alice read from *, prefixed"),
        ("remove", "topic:flights", "allow User:alice read from *, prefixed"),
    ]
    quota = api.QuotaChange(
        user="alice",
        client_id="",
        values=[
            api.QuotaValue(key="producer_byte_rate", value=1e6),
            api.QuotaValue(key="request_percentage"),
        ],
    )
    (line_of_it,) = told("AlterQuotas", api.AlterQuotasRequest(changes=[quota]), api.AlterQuotasResponse())
    assert line_of_it["resource"] == "user:alice,client-id:<default>"
    assert line_of_it["configs"] == "producer_byte_rate=1e+06,-request_percentage"


@pytest.mark.parametrize(
    ("method", "request_", "reply", "resource"),
    [
        ("ElectLeaders", api.ElectLeadersRequest(unclean=True), api.ElectLeadersResponse(changed=3), "all"),
        (
            "AlterReassignments",
            api.AlterReassignmentsRequest(
                reassignments=[api.Reassignment(topic="a", partition=1, replicas=[2, 3])]
            ),
            api.AlterReassignmentsResponse(),
            "a-1",
        ),
        ("UnregisterNode", api.UnregisterNodeRequest(node_id=4), api.UnregisterNodeResponse(), "4"),
        ("RegisterNode", api.RegisterNodeRequest(node_id=-1), api.RegisterNodeResponse(node_id=6), "6"),
        ("RegisterGateway", api.RegisterGatewayRequest(gateway_id="g"), api.RegisterGatewayResponse(), "g"),
        (
            "ReplaceController",
            api.ReplaceControllerRequest(controller_id=2),
            api.ReplaceControllerResponse(),
            "2",
        ),
        (
            "UpdateFeatures",
            api.UpdateFeaturesRequest(updates=[api.FeatureUpdate(name="metadata.level", level=2)]),
            api.UpdateFeaturesResponse(),
            "metadata.level",
        ),
        (
            "StartOperation",
            operations_pb2.StartOperationRequest(),
            operations_pb2.StartOperationResponse(
                operation=operations_pb2.Operation(record=pb.OperationRecord(operation_id=12))
            ),
            "12",
        ),
        (
            "ControlOperation",
            operations_pb2.ControlOperationRequest(
                operation_id=12, control=operations_pb2.OPERATION_CONTROL_PAUSE
            ),
            operations_pb2.ControlOperationResponse(),
            "12",
        ),
        (
            "RecoverTopics",
            operations_pb2.RecoverTopicsRequest(),
            operations_pb2.RecoverTopicsResponse(topics=[operations_pb2.RecoveredTopic(name="flights")]),
            "flights",
        ),
    ],
)
def test_the_cluster_itself(method: str, request_: Any, reply: Any, resource: str) -> None:
    (said,) = told(method, request_, reply)
    assert (said["resource"], said["outcome"]) == (resource, "ok")


class Noted(Audit):
    writes = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def tell_changes(self, expand: Expand) -> None:
        made: Iterable[Event] = expand()
        self.events.extend(made)


class Service:
    async def CreateTopics(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's
        return api.CreateTopicsResponse(version=2)


def test_the_caller_is_named_and_what_only_checks_is_not_told() -> None:
    for method in CHANGES.keys() - {"CreateTopics"}:
        setattr(Service, method, Service.CreateTopics)
    audit = Noted()
    service = told_to(audit, Service())

    async def scenario() -> None:
        set_caller(PeerIdentity("penstock.test", "gateway", "g1"))
        topics = [api.NewTopic(name="a")]
        await service.CreateTopics(api.CreateTopicsRequest(topics=topics, validate_only=True), None)
        assert not audit.events
        await service.CreateTopics(api.CreateTopicsRequest(topics=topics), None)

    asyncio.run(scenario())
    (event,) = audit.events
    assert event["via"] == "spiffe://penstock.test/gateway/g1"
    assert event["version"] == 2


def test_a_word_of_a_newer_build_is_told_by_its_number() -> None:
    refused = operations_pb2.ControlOperationResponse(error=DENIED)
    request = operations_pb2.ControlOperationRequest(operation_id=12, control=99)  # type: ignore[arg-type]
    (said,) = told("ControlOperation", request, refused)
    assert (said["operation"], said["outcome"]) == ("99", "policy_violation")
