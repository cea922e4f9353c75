"""Levels rise once everybody understands them, and keep older builds out from then on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_controller.state import configs, features, gateways, nodes, topics
from penstock_controller.state.generation import Context
from penstock_core.errors import ErrorCode
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import level_of, require_records, transaction_version
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from unit.controller.state.test_nodes import Cluster

ALL = dict.fromkeys((1, 2, 3), FEATURE_LEVEL)


def old_cluster() -> Cluster:
    """A cluster that was founded by a build of the first level."""
    return Cluster(level=1)


def wanted(
    level: int, *, name: str = "metadata.level", validate_only: bool = False
) -> api.UpdateFeaturesRequest:
    return api.UpdateFeaturesRequest(
        updates=[api.FeatureUpdate(name=name, level=level)], validate_only=validate_only
    )


def raise_to(
    context: Context, request: api.UpdateFeaturesRequest, controllers: features.ControllerLevels = ALL
) -> tuple[common.Error, list[pb.MetadataRecord]]:
    made = features.update_features(context, request, controllers)
    assert not (made.reply.error.code and made.records)
    return made.reply.error, made.records


def register(cluster: Cluster, level: int) -> api.RegisterNodeResponse:
    request = api.RegisterNodeRequest(
        node_id=-1, directory_id=b"x" * 16, process=common.ProcessInfo(feature_level=level)
    )
    made = nodes.register_node(cluster.context, request)
    cluster.do(made)
    return made.reply


def test_the_level_rises_and_the_record_says_with_which_version() -> None:
    cluster = old_cluster()
    error, records = raise_to(cluster.context, wanted(FEATURE_LEVEL))
    assert not error.code
    # Builds that look at kinds alone stop at the mark.
    kinds = ["feature", "level_mark", "cluster_secret", "cluster_secret"]
    assert [r.WhichOneof("record") for r in records] == kinds
    assert records[0].feature.version == cluster.context.version
    image = cluster.image.apply(records, cluster.image.version + 1)
    assert level_of(image) == FEATURE_LEVEL
    assert image.feature_versions == {"metadata.level": image.version}


def test_the_level_that_is_there_is_no_change() -> None:
    error, records = raise_to(Cluster(level=FEATURE_LEVEL).context, wanted(FEATURE_LEVEL))
    assert (error.code, records) == (0, [])


def test_a_check_changes_nothing() -> None:
    error, records = raise_to(old_cluster().context, wanted(2, validate_only=True))
    assert (error.code, records) == (0, [])


@pytest.mark.parametrize(
    ("request_", "controllers", "says"),
    [
        (wanted(2, name="metadata.version"), ALL, "does not support the given feature: metadata.version"),
        (wanted(0), ALL, "cannot go back from 1 to 0"),
        (wanted(FEATURE_LEVEL + 1), ALL, "upgrade the controllers first"),
        (
            wanted(2),
            {1: 2, 2: None, 3: 1},
            r"controller 2 \(it does not answer\), controller 3 \(it understands 1\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    request_: api.UpdateFeaturesRequest, controllers: features.ControllerLevels, says: str
) -> None:
    error, _ = raise_to(old_cluster().context, request_, controllers)
    assert error.code == ErrorCode.INVALID_UPDATE_VERSION
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(error.message)


def test_nodes_and_gateways_of_an_older_build_hold_the_level_back() -> None:
    cluster = old_cluster()
    node = register(cluster, 1)
    gateway = api.RegisterGatewayRequest(gateway_id="gw", process=common.ProcessInfo(feature_level=0))
    cluster.do(gateways.register_gateway(cluster.context, gateway))
    error, _ = raise_to(cluster.context, wanted(2))
    assert f"storage node {node.node_id} (it understands 1), gateway gw (it understands 1)" in error.message
    assert "upgrade or unregister them" in error.message


def test_an_older_build_does_not_register_any_more() -> None:
    cluster = Cluster(level=2)
    assert "install a newer build" in register(cluster, 1).error.message
    gateway = api.RegisterGatewayRequest(gateway_id="gw", process=common.ProcessInfo(feature_level=1))
    assert "install a newer build" in gateways.register_gateway(cluster.context, gateway).reply.error.message
    assert not register(cluster, FEATURE_LEVEL).error.code


@pytest.mark.parametrize("level", [1, 2])
def test_batches_that_go_in_pieces_need_level_2(level: int) -> None:
    cluster = Cluster(level=level)
    for node_id in (1, 2, 3):
        cluster.register(node_id, process=common.ProcessInfo(feature_level=FEATURE_LEVEL))
        cluster.unfence(node_id)
    large = {"max.message.bytes": str(8 * 1024 * 1024 + 1)}
    topic = api.NewTopic(name="t", partition_count=1, replication_factor=3, configs=large)
    made = topics.create_topics(cluster.context, api.CreateTopicsRequest(topics=[topic]))
    code = ErrorCode.NONE if level >= 2 else ErrorCode.UNSUPPORTED_VERSION
    assert made.reply.topics[0].error.code == code
    cluster.create("u")
    change = api.ConfigChange(key="max.message.bytes", value=large["max.message.bytes"])
    resource = api.ConfigResource(resource_type="topic", resource_name="u", changes=[change])
    altered = configs.alter_configs(cluster.context, api.AlterConfigsRequest(resources=[resource]))
    assert altered.reply.results[0].code == code


@pytest.mark.parametrize("level", [2, 3])
def test_who_set_a_setting_is_written_where_the_level_has_room_for_it(level: int) -> None:
    cluster = Cluster(level=level)
    cluster.register(1, process=common.ProcessInfo(feature_level=FEATURE_LEVEL))
    cluster.unfence(1)
    new = api.NewTopic(name="t", partition_count=1, replication_factor=1, configs={"retention.ms": "1000"})
    request = api.CreateTopicsRequest(topics=[new], principal="User:alice")
    cluster.do(topics.create_topics(replace(cluster.context, now_ms=1_000), request))
    change = api.ConfigChange(key="retention.bytes", value="5000000")
    resource = api.ConfigResource(resource_type="topic", resource_name="t", changes=[change])
    asked = api.AlterConfigsRequest(resources=[resource], principal="User:bob")
    cluster.do(configs.alter_configs(replace(cluster.context, now_ms=2_000), asked))
    assert cluster.image.config("topic", "t") == {"retention.ms": "1000", "retention.bytes": "5000000"}
    known = {"retention.ms": ("User:alice", 1_000), "retention.bytes": ("User:bob", 2_000)}
    assert cluster.image.config_authors.get(("topic", "t"), {}) == (known if level >= 3 else {})


# --- transaction.version ------------------------------------------------------------------


def version_of(level: int, *, downgrade: bool = False) -> api.UpdateFeaturesRequest:
    update = api.FeatureUpdate(name="transaction.version", level=level, allow_downgrade=downgrade)
    return api.UpdateFeaturesRequest(updates=[update])


def set_to(cluster: Cluster, level: int, *, downgrade: bool = False) -> common.Error:
    made = features.update_features(cluster.context, version_of(level, downgrade=downgrade), ALL)
    assert not (made.reply.error.code and made.records)
    cluster.do(made)
    return made.reply.error


def test_a_new_cluster_has_the_newest_transactions() -> None:
    cluster = Cluster(level=FEATURE_LEVEL)
    assert transaction_version(cluster.image) == 2
    assert cluster.image.feature_versions["transaction.version"] == 1


def test_transactions_go_up_and_down_and_each_change_is_an_epoch() -> None:
    cluster = Cluster(level=FEATURE_LEVEL)
    epochs = [max(cluster.image.feature_versions.values())]
    for level, downgrade in ((1, True), (2, False), (0, True), (2, False)):
        assert not set_to(cluster, level, downgrade=downgrade).code
        assert transaction_version(cluster.image) == level
        epochs.append(max(cluster.image.feature_versions.values()))
    assert epochs == sorted(set(epochs))
    # What is there already is no change.
    before = cluster.image
    assert not set_to(cluster, 2).code
    assert cluster.image is before


@pytest.mark.parametrize(
    ("cluster_level", "level", "downgrade", "says"),
    [
        (FEATURE_LEVEL, 3, False, "none above 2"),
        (FEATURE_LEVEL, 1, False, "does not go back unless"),
        (3, 1, False, "needs metadata.level 4, the cluster has 3; run `penstock cluster upgrade` first"),
    ],
)
def test_versions_of_transactions_that_cannot_be(
    cluster_level: int, level: int, downgrade: bool, says: str
) -> None:
    cluster = Cluster(level=cluster_level)
    error = set_to(cluster, level, downgrade=downgrade)
    assert error.code == ErrorCode.INVALID_UPDATE_VERSION
    assert says in error.message


def test_a_downgrade_that_goes_up_is_refused() -> None:
    cluster = Cluster(level=FEATURE_LEVEL)
    assert not set_to(cluster, 1, downgrade=True).code
    assert "this is no downgrade" in set_to(cluster, 2, downgrade=True).message


def test_level_and_transactions_may_rise_in_one_request() -> None:
    cluster = Cluster(level=3)
    request = wanted(4)
    request.updates.extend(version_of(2).updates)
    made = features.update_features(cluster.context, request, ALL)
    assert not made.reply.error.code
    require_records(cluster.image, made.records)
    cluster.do(made)
    assert (level_of(cluster.image), transaction_version(cluster.image)) == (4, 2)
