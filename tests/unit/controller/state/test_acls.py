"""ACLs are added and deleted as Kafka's controller does it."""

from __future__ import annotations

from penstock_controller.state import acls
from penstock_core.errors import ErrorCode
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from unit.controller.state.test_nodes import Cluster

TOPIC, LITERAL, PREFIXED, READ, ALLOW, ANY = 2, 3, 4, 3, 3, 1


def acl(name: str = "t", user: str = "alice", **values: object) -> pb.AclRecord:
    fields = {
        "resource_type": TOPIC,
        "pattern_type": LITERAL,
        "resource_name": name,
        "principal": f"User:{user}",
        "host": "*",
        "operation": READ,
        "permission": ALLOW,
    }
    return pb.AclRecord(**{**fields, **values})  # type: ignore[arg-type]


def everything(**values: object) -> api.AclFilter:
    fields = {"resource_type": ANY, "pattern_type": ANY, "operation": ANY, "permission": ANY}
    return api.AclFilter(**{**fields, **values})  # type: ignore[arg-type]


def alter(
    cluster: Cluster, add: list[pb.AclRecord] | None = None, remove: list[api.AclFilter] | None = None
) -> api.AlterAclsResponse:
    made = acls.alter_acls(cluster.context, api.AlterAclsRequest(add=add, remove=remove))
    cluster.do(made)
    return made.reply


def rules(cluster: Cluster) -> list[tuple[str, str]]:
    return [(row.resource_name, row.principal) for row in cluster.image.security.acls]


def test_an_acl_is_added_once_however_often_it_is_asked_for() -> None:
    cluster = Cluster(level=2)
    assert [e.code for e in alter(cluster, [acl(), acl(), acl("u")]).added] == [0, 0, 0]
    version = cluster.image.version
    assert [e.code for e in alter(cluster, [acl()]).added] == [0]
    assert cluster.image.version == version
    assert rules(cluster) == [("t", "User:alice"), ("u", "User:alice")]


def test_a_bad_entry_fails_alone_and_is_named() -> None:
    cluster = Cluster(level=2)
    reply = alter(cluster, [acl(""), acl(principal="alice"), acl(operation=1), acl()])
    assert [e.code for e in reply.added] == [ErrorCode.INVALID_REQUEST] * 3 + [0]
    assert "Resource name should not be empty" in reply.added[0].message
    assert len(rules(cluster)) == 1


def test_filters_delete_what_they_ask_for_and_tell_it() -> None:
    cluster = Cluster(level=2)
    alter(cluster, [acl("a"), acl("b"), acl("a", "bob"), acl("a-", pattern_type=PREFIXED)])
    reply = alter(
        cluster,
        remove=[
            everything(principal="User:bob"),
            everything(resource_type=TOPIC, pattern_type=2, resource_name="a-1"),
            everything(resource_name="nothing"),
        ],
    )
    found = [[(a.resource_name, a.principal) for a in each.acls] for each in reply.removed]
    assert found == [[("a", "User:bob")], [("a-", "User:alice")], []]
    assert rules(cluster) == [("a", "User:alice"), ("b", "User:alice")]


def test_an_acl_that_two_filters_ask_for_is_told_twice_and_deleted_once() -> None:
    cluster = Cluster(level=2)
    alter(cluster, [acl()])
    reply = alter(cluster, remove=[everything(), everything()])
    assert [len(each.acls) for each in reply.removed] == [1, 1]
    assert not rules(cluster)


def test_a_filter_that_nobody_understands_fails_alone() -> None:
    cluster = Cluster(level=2)
    alter(cluster, [acl()])
    reply = alter(cluster, remove=[everything(resource_type=99), everything(principal="User:nobody")])
    assert [each.error.code for each in reply.removed] == [ErrorCode.INVALID_REQUEST, 0]
    assert len(rules(cluster)) == 1


def test_too_much_at_once_is_refused_as_a_whole() -> None:
    cluster = Cluster(level=2)
    many = [acl(f"t{i}") for i in range(acls.CHANGES_MAX + 1)]
    assert alter(cluster, many).error.code == ErrorCode.INVALID_REQUEST
    assert not rules(cluster)
    alter(cluster, many[:-1])
    alter(cluster, many[-1:])
    assert len(rules(cluster)) == acls.CHANGES_MAX + 1
    assert "in parts" in alter(cluster, remove=[everything()]).error.message
    assert len(rules(cluster)) == acls.CHANGES_MAX + 1


def test_below_level_2_there_are_no_acls() -> None:
    reply = alter(Cluster(level=1), [acl()])
    assert reply.error.code == ErrorCode.UNSUPPORTED_VERSION
