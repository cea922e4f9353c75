"""Settings, reassignments, elections, quorum: every version, over a real listener and real gRPC.

The controller here notes what it is asked and answers as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_frontend.cluster import quorum as cluster_quorum
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_proto.v1 import common_pb2, metadata_pb2
from penstock_proto.v1 import controller_pb2 as pb
from support.denials import Denying
from support.waiting import eventually
from unit.frontend.cluster.test_apis import Client, of, serving
from unit.runtime.fake_controllers import Cluster, FakeController

Run = Callable[[Coroutine[Any, Any, Any]], Any]
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
TOPIC_ID = b"t" * 16


class Script:
    """What the controller is asked, and the codes that it answers with, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.codes: list[int] = []
        for name in (
            "AlterConfigs",
            "AlterReassignments",
            "ElectLeaders",
            "UnregisterNode",
            "UpdateFeatures",
        ):
            monkeypatch.setattr(FakeController, name, self._answering(name), raising=False)

    def _errors(self, count: int) -> list[common_pb2.Error]:
        codes, self.codes = self.codes[:count], self.codes[count:]
        codes += [0] * (count - len(codes))
        return [common_pb2.Error(code=c, message="the mend" if c else "") for c in codes]

    def _answering(self, name: str) -> Any:
        script = self

        async def answer(_controller: Any, request: Any, _context: Any) -> Any:
            script.asked.append(request)
            if name == "AlterConfigs":
                return pb.AlterConfigsResponse(results=script._errors(len(request.resources)))
            if name == "AlterReassignments":
                return pb.AlterReassignmentsResponse(results=script._errors(len(request.reassignments)))
            if name == "ElectLeaders":
                results = [
                    pb.ElectionResult(topic_id=p.topic_id, partition=p.partition, error=e)
                    for p, e in zip(request.partitions, script._errors(len(request.partitions)), strict=True)
                ]
                return pb.ElectLeadersResponse(results=results)
            if name == "UpdateFeatures":
                each = script._errors(len(request.updates))
                return pb.UpdateFeaturesResponse(results=each, error=next((e for e in each if e.code), None))
            (error,) = script._errors(1)
            return pb.UnregisterNodeResponse(error=error)

        return answer


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def with_topic(cluster: Cluster, **partition: Any) -> int:
    return cluster.commit(
        metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=TOPIC_ID, name="t")),
        metadata_pb2.MetadataRecord(
            partition=metadata_pb2.PartitionRecord(
                topic_id=TOPIC_ID,
                **{"replicas": [1, 2, 3], "isr": [1, 2, 3], "leader": 1, "leader_epoch": 1, **partition},
            )
        ),
        metadata_pb2.MetadataRecord(
            config=metadata_pb2.ConfigRecord(
                resource_type="topic",
                resource_name="t",
                key="retention.ms",
                value="5",
                set_by="User:alice",
                set_ms=1_700_000_000_123,
            )
        ),
    )


async def until_known(client: Client, topic: str) -> None:
    await eventually(lambda: topic in client.metadata.image.topic_ids, f"{topic} in the metadata")


def versions(key: ApiKey) -> range:
    low, high = SUPPORTED[key]
    return range(low, high + 1)


def test_describe_configs_in_every_version(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, cluster, *_):
            with_topic(cluster)
            await until_known(client, "t")
            for version in versions(ApiKey.DESCRIBE_CONFIGS):
                key = (ApiKey.DESCRIBE_CONFIGS, version)
                asked = [(TOPIC, "t"), (BROKER, "1"), (BROKER, ""), (GROUP, "g"), (TOPIC, "u")]
                asked += [(TOPIC, "no/name"), (BROKER, "77"), (GROUP, ""), (LOGGER, "1"), (99, "x")]
                resources = tuple(
                    of(
                        *key,
                        "DescribeConfigsResource",
                        resource_type=kind,
                        resource_name=name,
                        configuration_keys=None,
                    )
                    for kind, name in asked
                )
                found = await client.call(
                    *key, resources=resources, include_synonyms=True, include_documentation=True
                )
                assert [(r.resource_type, r.resource_name) for r in found.results] == asked
                invalid = int(ErrorCode.INVALID_REQUEST)
                codes = [int(r.error_code) for r in found.results]
                assert codes == [0, 0, 0, 0, 3, 17, invalid, invalid, invalid, invalid]
                shown = {c.name: c for c in found.results[0].configs}
                assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
                assert [s.name for s in shown["retention.ms"].synonyms] == ["retention.ms"]
                assert [s.name for s in shown["max.message.bytes"].synonyms] == ["message.max.bytes"]
                assert shown["min.insync.replicas"].value == "2"
                if version >= 3:
                    assert shown["retention.ms"].config_type == 5
                    who = " [set by User:alice at 2023-11-14T22:13:20.123+00:00]"
                    assert shown["retention.ms"].documentation.endswith(who)
                    assert "[set by" not in shown["max.message.bytes"].documentation
                assert found.results[2].configs == ()
                some = of(
                    *key,
                    "DescribeConfigsResource",
                    resource_type=TOPIC,
                    resource_name="t",
                    configuration_keys=("segment.ms", "nonsense"),
                )
                found = await client.call(*key, resources=(some,))
                assert [c.name for c in found.results[0].configs] == ["segment.ms"]
                assert found.results[0].configs[0].synonyms == ()

    run(main())


def test_changes_reach_the_controller_and_its_refusals_the_client(run: Run, script: Script) -> None:
    async def main() -> None:
        async with serving() as (client, *_):
            for version in versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
                key = (ApiKey.INCREMENTAL_ALTER_CONFIGS, version)

                def change(
                    name: str, operation: int, value: str | None, key: tuple[ApiKey, int] = key
                ) -> Any:
                    return of(*key, "AlterableConfig", name=name, config_operation=operation, value=value)

                def resource(kind: int, name: str, *changes: Any, key: tuple[ApiKey, int] = key) -> Any:
                    return of(
                        *key, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=changes
                    )

                script.asked.clear()
                script.codes = [0, int(ErrorCode.INVALID_CONFIG)]
                found = await client.call(
                    *key,
                    resources=(
                        resource(TOPIC, "t", change("a", 0, "1"), change("b", 1, None), change("c", 2, "x")),
                        resource(BROKER, "", change("a", 0, "1")),
                        resource(TOPIC, "u", change("a", 0, None)),
                        resource(TOPIC, "v", change("a", 0, "1"), change("a", 0, "2")),
                        resource(TOPIC, "w", change("a", 9, "1")),
                        resource(TOPIC, "", change("a", 0, "1")),
                        resource(LOGGER, "1", change("a", 0, "1")),
                        resource(GROUP, "x", change("a", 0, "1")),
                        resource(GROUP, "x", change("b", 0, "1")),
                    ),
                    validate_only=version == 1,
                )
                codes = [int(r.error_code) for r in found.responses]
                assert codes == [0, int(ErrorCode.INVALID_CONFIG)] + [int(ErrorCode.INVALID_REQUEST)] * 7
                assert found.responses[1].error_message == "the mend"
                (asked,) = script.asked
                assert asked.validate_only == (version == 1)
                first, second = asked.resources
                assert (first.resource_type, first.resource_name, first.replace_all) == ("topic", "t", False)
                assert [(c.key, c.value, c.HasField("value"), c.operation) for c in first.changes] == [
                    ("a", "1", True, pb.CONFIG_OPERATION_SET),
                    ("b", "", False, pb.CONFIG_OPERATION_SET),
                    ("c", "x", True, pb.CONFIG_OPERATION_APPEND),
                ]
                assert (second.resource_type, second.resource_name) == ("cluster", "")
            for version in versions(ApiKey.ALTER_CONFIGS):
                key = (ApiKey.ALTER_CONFIGS, version)
                whole = of(
                    *key,
                    "AlterConfigsResource",
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=(of(*key, "AlterableConfig", name="a", value="1"),),
                )
                found = await client.call(*key, resources=(whole,), validate_only=False)
                assert [int(r.error_code) for r in found.responses] == [0]
                assert script.asked[-1].resources[0].replace_all

    run(main())


def test_resources_are_listed(run: Run) -> None:
    async def main() -> None:
        async with serving() as (client, cluster, *_):
            cluster.commit(
                metadata_pb2.MetadataRecord(
                    config=metadata_pb2.ConfigRecord(
                        resource_type="group", resource_name="g", key="k", value="1"
                    )
                )
            )
            with_topic(cluster)
            # The last commit: what is known of it, is known of all.
            await until_known(client, "t")
            key = ApiKey.LIST_CONFIG_RESOURCES
            assert (await client.call(key, 0)).config_resources == ()
            for wanted, expected in (
                ((), {(TOPIC, "t"), (BROKER, "1"), (BROKER, "2"), (BROKER, "3"), (GROUP, "g")}),
                ((GROUP,), {(GROUP, "g")}),
                ((16,), set()),
            ):
                found = await client.call(key, 1, resource_types=wanted)
                assert {(r.resource_type, r.resource_name) for r in found.config_resources} >= expected
                assert (
                    wanted == ()
                    or {(r.resource_type, r.resource_name) for r in found.config_resources} == expected
                )

    run(main())


def test_reassignments_in_every_version(run: Run, script: Script) -> None:
    async def main() -> None:
        async with serving() as (client, cluster, *_):
            with_topic(cluster, replicas=[2, 1, 3], adding_replicas=[2], removing_replicas=[3])
            await until_known(client, "t")
            for version in versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
                key = (ApiKey.ALTER_PARTITION_REASSIGNMENTS, version)
                script.codes = [0, int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]
                partitions = tuple(
                    of(*key, "ReassignablePartition", partition_index=i, replicas=replicas)
                    for i, replicas in enumerate(((1, 2), None, ()))
                )
                topic = of(*key, "ReassignableTopic", name="t", partitions=partitions)
                found = await client.call(
                    *key, topics=(topic,), timeout=60_000, allow_replication_factor_change=False
                )
                codes = {p.partition_index: int(p.error_code) for p in found.responses[0].partitions}
                assert codes == {
                    0: 0,
                    1: int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
                    2: int(ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                }
                asked = script.asked[-1]
                assert [list(r.replicas) for r in asked.reassignments] == [[1, 2], []]
                assert asked.allow_factor_change == (version == 0)
            key = (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)
            named = of(*key, "ListPartitionReassignmentsTopics", name="t", partition_indexes=(0, 7))
            other = of(*key, "ListPartitionReassignmentsTopics", name="t", partition_indexes=(1,))
            for topics, count in ((None, 1), ((named,), 1), ((other,), 0)):
                found = await client.call(*key, timeout=60_000, topics=topics)
                assert len(found.topics) == count
                if count:
                    (partition,) = found.topics[0].partitions
                    assert (partition.adding_replicas, partition.removing_replicas) == ((2,), (3,))

    run(main())


def test_elections_and_farewells(run: Run, script: Script) -> None:
    async def main() -> None:
        async with serving() as (client, cluster, *_):
            with_topic(cluster)
            await until_known(client, "t")
            for version in versions(ApiKey.ELECT_LEADERS):
                key = (ApiKey.ELECT_LEADERS, version)
                script.codes = [int(ErrorCode.ELECTION_NOT_NEEDED)]
                topic = of(*key, "TopicPartitions", topic="t", partitions=(0, 7))
                found = await client.call(*key, election_type=1, topic_partitions=(topic,), timeout=60_000)
                results = {
                    (t.topic, p.partition_id): int(p.error_code)
                    for t in found.replica_election_results
                    for p in t.partition_result
                }
                assert results == {("t", 0): int(ErrorCode.ELECTION_NOT_NEEDED), ("t", 7): 3}
                assert script.asked[-1].unclean == (version >= 1)
                found = await client.call(*key, election_type=0, topic_partitions=None, timeout=60_000)
                assert found.replica_election_results == ()
            found = await client.call(
                ApiKey.ELECT_LEADERS, 2, election_type=5, topic_partitions=None, timeout=60_000
            )
            assert int(found.error_code) == ErrorCode.INVALID_REQUEST
            script.codes = [int(ErrorCode.POLICY_VIOLATION)]
            found = await client.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=3)
            assert (int(found.error_code), found.error_message) == (ErrorCode.POLICY_VIOLATION, "the mend")
            assert script.asked[-1].node_id == 3

    run(main())


def test_features_are_updated_all_together(run: Run, script: Script) -> None:
    async def main() -> None:
        async with serving() as (client, *_):
            for version in versions(ApiKey.UPDATE_FEATURES):
                key = (ApiKey.UPDATE_FEATURES, version)
                updates = tuple(
                    of(
                        *key,
                        "FeatureUpdateKey",
                        feature=name,
                        max_version_level=level,
                        allow_downgrade=False,
                        upgrade_type=1,
                    )
                    for name, level in (("metadata.level", 2), ("metadata.version", 9))
                )
                script.codes = [0, ErrorCode.INVALID_UPDATE_VERSION]
                found = await client.call(
                    *key, timeout=60_000, feature_updates=updates, validate_only=version > 0
                )
                code = ErrorCode.INVALID_UPDATE_VERSION
                assert (found.error_code, found.error_message) == (code, "the mend")
                assert version > 1 or found.results == ()
                asked = script.asked.pop()
                assert [(u.name, u.level, u.allow_downgrade) for u in asked.updates] == [
                    ("metadata.level", 2, False),
                    ("metadata.version", 9, False),
                ]
                assert (asked.validate_only, asked.principal) == (version > 0, "User:ANONYMOUS")
                found = await client.call(
                    *key, timeout=60_000, feature_updates=updates[:1], validate_only=False
                )
                assert found.error_code == 0

    run(main())


def test_quorum_and_log_directories(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # A controller that is merely slow, on a busy machine, is not given up.
    monkeypatch.setattr(cluster_quorum, "_ASK_TIMEOUT_S", 60.0)

    async def main() -> None:
        async with serving() as (client, *_):
            for version in versions(ApiKey.DESCRIBE_QUORUM):
                key = (ApiKey.DESCRIBE_QUORUM, version)
                partition = of(*key, "PartitionData", partition_index=0)
                topics = tuple(
                    of(*key, "TopicData", topic_name=name, partitions=(partition,))
                    for name in ("__cluster_metadata", "t")
                )
                found = await client.call(*key, topics=topics)
                codes = [int(t.partitions[0].error_code) for t in found.topics]
                assert (int(found.error_code), codes) == (0, [0, 3])
                assert found.topics[0].partitions[0].leader_id == 1
            for version in versions(ApiKey.DESCRIBE_LOG_DIRS):
                found = await client.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
                (directory,) = found.results
                assert (int(directory.error_code), directory.topics) == (0, ())
                assert "behind a gateway" in directory.log_dir

    run(main())


def test_without_a_right_nothing_is_told_or_done(run: Run, script: Script) -> None:
    async def main() -> None:
        async with serving(Denying(lambda *_: True)) as (client, *_):
            key = (ApiKey.DESCRIBE_CONFIGS, 4)
            kinds = {TOPIC: 29, BROKER: 31, GROUP: 30}
            resources = tuple(
                of(
                    *key,
                    "DescribeConfigsResource",
                    resource_type=kind,
                    resource_name="1",
                    configuration_keys=None,
                )
                for kind in kinds
            )
            found = await client.call(*key, resources=resources)
            assert [int(r.error_code) for r in found.results] == list(kinds.values())
            for api, values in (
                (ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": (), "timeout": 1}),
                (ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None, "timeout": 1}),
                (ApiKey.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout": 1}),
                (ApiKey.UNREGISTER_BROKER, {"broker_id": 3}),
                (ApiKey.DESCRIBE_QUORUM, {"topics": ()}),
                (ApiKey.UPDATE_FEATURES, {"timeout": 1, "feature_updates": ()}),
                (ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": ()}),
            ):
                found = await client.call(api, SUPPORTED[api][1], **values)
                assert int(found.error_code) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api
            assert script.asked == []

    run(main())
