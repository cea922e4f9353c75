"""What is hidden looks as if it were not there, and who sees the same shares the answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from conformance.build import request as build_request
from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import OPERATIONS_OF
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from penstock_core.security.principal import Identity, user
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.cluster.apis import ApiOptions, ClusterApis
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_proto.v1 import controller_pb2
from support.acls import acl
from support.rights_table import CLUSTER_ROWS, authorizer_of
from unit.frontend.cluster.test_rights import NoController, Nowhere, image_with

NOTHING = -(2**31)
NO_ID = UUID(int=0)


def asks(name: str, host: str = "10.0.0.1") -> Any:
    who = Identity(user(name), host)
    return SimpleNamespace(client_id=None, identity=who, principal=who.principal, listener="PROXY", state={})


def id_of(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\0")[-16:])


class Process:
    """A process with that image, and entries."""

    def __init__(self, image: MetadataImage, *entries: Any, controllers: Any = None, **more: Any) -> None:
        self.controllers = controllers or NoController()
        self.metadata: Any = SimpleNamespace(image=image, on_change=lambda _: None)
        self.authorizer, self.told = authorizer_of(CLUSTER_ROWS[0], entries)
        self.apis = self.make(self.authorizer, **more)

    def make(self, authorizer: Any, **more: Any) -> ClusterApis:
        world: Any = self.controllers
        return ClusterApis(
            self.metadata, world, world, Nowhere(), authorizer, KafkaMetrics(), ApiOptions(**more)
        )

    def ask(self, connection: Any, api: ApiKey, version: int, **values: Any) -> Any:
        request = build_request(api.name.lower(), version, values)
        frame = bytearray(request_header(api, version, 7, "test") + codec.encode_body(request))
        answer = asyncio.run(self.apis.handle(connection, parse_request_header(frame), frame))
        assert isinstance(answer, bytes)
        return codec.decode_response(api, version, answer)[1]


SEES_A = acl(Op.READ, Kind.TOPIC, "a", principal="User:*")


def test_by_name_a_hidden_topic_has_no_id_whether_it_exists_or_not() -> None:
    one = Process(image_with("a", "__consumer_offsets"), SEES_A)
    topics = [{"name": n, "topic_id": NO_ID} for n in ("a", "__consumer_offsets", "none")]
    shown = one.ask(asks("alice"), ApiKey.METADATA, 12, topics=topics).topics
    assert [(int(t.error_code), t.name, t.topic_id, t.is_internal) for t in shown] == [
        (0, "a", id_of("a"), False),
        (29, "__consumer_offsets", None, False),
        (29, "none", None, False),
    ]
    assert [name for _, _, name in one.told] == ["__consumer_offsets", "none"]


def test_by_id_a_hidden_topic_has_no_name_and_an_unknown_id_is_told_as_such() -> None:
    one = Process(image_with("a", "b"), SEES_A)
    topics = [{"name": None, "topic_id": id_of(n)} for n in ("a", "b", "none")]
    shown = one.ask(asks("alice"), ApiKey.METADATA, 12, topics=topics).topics
    assert [(int(t.error_code), t.name, t.topic_id) for t in shown] == [
        (0, "a", id_of("a")),
        (29, None, id_of("b")),
        (100, None, id_of("none")),
    ]


@pytest.mark.parametrize("version", [1, 9, 13])
def test_of_all_topics_the_hidden_are_left_out_and_nobody_is_told(version: int) -> None:
    one = Process(image_with("a", "b", "c"), SEES_A)
    shown = one.ask(asks("alice"), ApiKey.METADATA, version, topics=None).topics
    assert [t.name for t in shown] == ["a"]
    assert one.told == []


def test_many_names_are_asked_for_together_and_answered_as_one_by_one() -> None:
    one = Process(image_with("a", "b"), SEES_A)
    topics = [{"name": n} for n in ("a", "b", *(f"n{i}" for i in range(100)))]
    shown = one.ask(asks("alice"), ApiKey.METADATA, 9, topics=topics).topics
    assert [int(t.error_code) for t in shown] == [0] + [29] * 101
    assert len(one.told) == 101


def test_what_a_client_may_do_is_filled_in_where_it_asks() -> None:
    describe = acl(Op.DESCRIBE, Kind.CLUSTER, principal="User:bob")
    one = Process(image_with("a", "b"), SEES_A, describe)
    both = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    topics = [{"name": "a"}, {"name": "b"}]
    alice = one.ask(asks("alice"), ApiKey.METADATA, 9, topics=topics, **both)
    bits = 1 << Op.READ | 1 << Op.DESCRIBE
    assert [t.topic_authorized_operations for t in alice.topics] == [bits, NOTHING]
    assert alice.cluster_authorized_operations == 0
    bob = one.ask(asks("bob"), ApiKey.METADATA, 9, topics=topics, **both)
    assert bob.cluster_authorized_operations == 1 << Op.DESCRIBE
    unasked = one.ask(asks("bob"), ApiKey.METADATA, 9, topics=topics)
    assert unasked.cluster_authorized_operations == NOTHING
    page = one.ask(asks("alice"), ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}, {"name": "b"}])
    assert [t.topic_authorized_operations for t in page.topics] == [bits, NOTHING]
    for who, operations in (("alice", 0), ("bob", 1 << Op.DESCRIBE)):
        found = one.ask(asks(who), ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True)
        assert found.cluster_authorized_operations == operations


def test_without_an_authorizer_everything_is_allowed_and_told() -> None:
    one = Process(image_with("a"))
    one.apis = one.make(AllowAll())
    both = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    shown = one.ask(asks("alice"), ApiKey.METADATA, 9, topics=None, **both)
    assert shown.cluster_authorized_operations == OPERATIONS_OF[Kind.CLUSTER]
    assert [t.topic_authorized_operations for t in shown.topics] == [OPERATIONS_OF[Kind.TOPIC]]


def test_clients_that_see_the_same_share_one_answer_wherever_they_come_from() -> None:
    only_carol = acl(Op.READ, Kind.TOPIC, "b", principal="User:carol")
    one = Process(image_with("a", "b"), SEES_A, only_carol)
    kept = one.apis._metadata_answers._kept
    for who, host, answers in (("alice", "1", 1), ("bob", "2", 1), ("alice", "3", 1), ("carol", "1", 2)):
        shown = one.ask(asks(who, host), ApiKey.METADATA, 9, topics=None).topics
        assert [t.name for t in shown] == (["a", "b"] if who == "carol" else ["a"])
        assert len(kept) == answers
    one.metadata.image = one.metadata.image.apply([], 2)
    one.ask(asks("bob"), ApiKey.METADATA, 9, topics=None)
    assert len(kept) == 1


def test_an_answer_that_was_kept_is_nobody_elses_once_the_sets_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = [acl(Op.READ, Kind.TOPIC, name, principal=f"User:{name}") for name in ("a", "b", "c")]
    monkeypatch.setattr("penstock_frontend.cluster.metadata_answers.VISIBLE_NAMES_MAX", 2)
    one = Process(image_with("a", "b", "c"), *only)
    for who in ("a", "b", "c", "a"):
        shown = one.ask(asks(who), ApiKey.METADATA, 9, topics=None).topics
        assert [t.name for t in shown] == [who]


def test_who_asks_first_after_old_news_sees_nothing_of_who_asked_before_them() -> None:
    only = [acl(Op.READ, Kind.TOPIC, name, principal=f"User:{name}") for name in ("a", "b")]
    one = Process(image_with("a", "b"), *only)

    def seen_by(who: str) -> list[str]:
        return [t.name for t in one.ask(asks(who), ApiKey.METADATA, 9, topics=None).topics]

    assert seen_by("a") == ["a"]
    one.authorizer.distrust()
    assert seen_by("b") == []
    one.authorizer.trust()
    assert (seen_by("b"), seen_by("a")) == (["b"], ["a"])


def test_a_topic_that_may_be_described_but_not_made_is_denied_and_not_made() -> None:
    rights = (
        acl(Op.DESCRIBE, Kind.TOPIC, "*", principal="User:*"),
        acl(Op.CREATE, Kind.TOPIC, "mine-", prefixed=True, principal="User:*"),
    )
    one = Process(image_with("a"), *rights, auto_create=True)
    asked = {"topics": [{"name": n} for n in ("a", "theirs", "mine-1")], "allow_auto_topic_creation": True}
    shown = one.ask(asks("alice"), ApiKey.METADATA, 9, **asked).topics
    assert [(t.name, int(t.error_code)) for t in shown] == [("a", 0), ("theirs", 29), ("mine-1", 3)]
    assert one.controllers.asked == ["CreateTopics"]
    assert one.told == [(Op.CREATE, Kind.TOPIC, "theirs")]


class Creates(NoController):
    """Makes every topic."""

    async def call(self, method: str, request: Any, *_: Any, **__: Any) -> Any:
        self.asked.append(method)
        made = [
            controller_pb2.CreatedTopic(
                name=t.name, topic_id=id_of(t.name).bytes, partition_count=4, replication_factor=2
            )
            for t in request.topics
        ]
        return controller_pb2.CreateTopicsResponse(topics=made)


def test_settings_of_a_new_topic_are_shown_to_those_who_may_see_them() -> None:
    create = acl(Op.CREATE, Kind.CLUSTER, principal="User:*")
    see = acl(Op.DESCRIBE_CONFIGS, Kind.TOPIC, "new", principal="User:alice")
    one = Process(image_with(), create, see, controllers=Creates())
    wanted = {
        "topics": [{"name": "new", "num_partitions": 4, "replication_factor": 2}],
        "validate_only": True,
    }
    for who, code, counts in (("alice", 0, (4, 2)), ("bob", 29, (-1, -1))):
        (topic,) = one.ask(asks(who), ApiKey.CREATE_TOPICS, 7, **wanted).topics
        assert (int(topic.error_code), topic.topic_id) == (0, id_of("new"))
        assert int(topic.topic_config_error_code) == code
        assert (topic.num_partitions, topic.replication_factor) == counts
        assert bool(topic.configs) == (code == 0)


def test_a_topic_asked_to_be_deleted_by_id_keeps_its_name_hidden() -> None:
    describe = acl(Op.DESCRIBE, Kind.TOPIC, "seen", principal="User:*")
    one = Process(image_with("seen", "hidden"), describe)
    topics = [{"name": None, "topic_id": id_of(n)} for n in ("seen", "hidden", "none")]
    answers = one.ask(asks("alice"), ApiKey.DELETE_TOPICS, 6, topics=topics).responses
    assert [(int(t.error_code), t.name, t.topic_id) for t in answers] == [
        (29, "seen", id_of("seen")),
        (29, None, id_of("hidden")),
        (100, None, id_of("none")),
    ]
    # What this process does not know is not handed on: nobody would ask for the right to it.
    assert one.controllers.asked == []
