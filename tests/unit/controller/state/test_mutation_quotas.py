"""controller_mutation_rate: who is refused, who waits, and what a request that is decided again spends."""

from __future__ import annotations

import pytest

from penstock_controller.state import topics
from penstock_controller.state.mutation_quotas import (
    BUCKETS_MAX,
    UNLIMITED,
    MutationBudget,
    MutationQuotas,
)
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.quota_entities import CONTROLLER_MUTATION_RATE, DEFAULT, QuotaEntity
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster

QUOTAS = {QuotaEntity("alice"): {CONTROLLER_MUTATION_RATE: 1.0}}
STRICT = api.MutationQuota(user="alice", client_id="c", strict=True)
LENIENT = api.MutationQuota(user="alice", client_id="c")


def test_who_has_no_quota_is_not_counted() -> None:
    quotas = MutationQuotas()
    assert quotas.budget({}, STRICT, 0) is UNLIMITED
    assert quotas.budget(QUOTAS, None, 0) is UNLIMITED
    assert quotas.budget(QUOTAS, api.MutationQuota(user="bob"), 0) is UNLIMITED
    UNLIMITED.spend(10**9)


def test_a_strict_request_is_refused_while_something_is_owed() -> None:
    """The bucket holds eleven seconds' worth and may go below zero once, as Kafka's."""
    quotas = MutationQuotas()
    first = quotas.budget(QUOTAS, STRICT, 0)
    first.begin(0)
    first.spend(10)
    first.spend(6)
    with pytest.raises(PenstockError, match="quota has been exceeded") as caught:
        first.spend(1)
    assert caught.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert first.throttle_ms == 5_000
    later = quotas.budget(QUOTAS, STRICT, 5_000)
    later.begin(5_000)
    later.spend(1)
    assert later.throttle_ms == 0


def test_an_older_request_is_done_and_waits() -> None:
    quotas = MutationQuotas()
    budget = quotas.budget(QUOTAS, LENIENT, 0)
    budget.begin(0)
    budget.spend(16)
    budget.spend(1)
    assert budget.throttle_ms == 6_000


def test_a_request_that_is_decided_again_spends_once() -> None:
    quotas = MutationQuotas()
    budget = quotas.budget(QUOTAS, STRICT, 0)
    for _ in range(5):
        budget.begin(0)
        budget.spend(11)
        budget.spend(0)
    assert budget.throttle_ms == 0


def test_another_quota_counts_at_once_and_buckets_are_bounded() -> None:
    quotas = MutationQuotas()
    quotas.budget(QUOTAS, LENIENT, 0).spend(20)
    slower = quotas.budget({QuotaEntity("alice"): {CONTROLLER_MUTATION_RATE: 0.5}}, LENIENT, 0)
    slower.begin(0)
    slower.spend(0)
    assert slower.throttle_ms == 18_000
    everybody = {QuotaEntity(None, DEFAULT): {CONTROLLER_MUTATION_RATE: 1.0}}
    for n in range(BUCKETS_MAX + 10):
        quotas.budget(everybody, api.MutationQuota(user="u", client_id=str(n)), 0)
    assert len(quotas._buckets) == BUCKETS_MAX


def test_topics_are_refused_one_by_one() -> None:
    """What is created, grown and deleted counts by partitions, and the answer says for how long to wait."""
    cluster = Cluster()
    cluster.up(1, 2, 3)
    quotas = MutationQuotas()

    def budget(whose: api.MutationQuota = STRICT) -> MutationBudget:
        made = quotas.budget(QUOTAS, whose, 0)
        made.begin(0)
        return made

    def new(name: str, count: int) -> api.NewTopic:
        return api.NewTopic(name=name, partition_count=count, replication_factor=1)

    request = api.CreateTopicsRequest(topics=[new("a", 10), new("bad name", 90), new("b", 4), new("c", 1)])
    generated = topics.create_topics(cluster.context, request, budget())
    cluster.do(generated)
    codes = [t.error.code for t in generated.reply.topics]
    assert codes == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert generated.reply.throttle_ms == 3_000
    assert set(cluster.image.topic_ids) == {"a", "b"}
    grow = api.CreatePartitionsRequest(topics=[api.NewPartitions(name="a", total_count=11)])
    grown = topics.create_partitions(cluster.context, grow, budget()).reply
    assert (grown.topics[0].error.code, grown.throttle_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 3_000)
    delete = api.DeleteTopicsRequest(topics=[api.TopicRef(name="b")])
    refused = topics.delete_topics(cluster.context, delete, budget()).reply
    assert (refused.topics[0].error.code, refused.throttle_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 3_000)
    done = topics.delete_topics(cluster.context, delete, budget(LENIENT))
    cluster.do(done)
    assert (done.reply.topics[0].error.code, done.reply.throttle_ms) == (0, 7_000)
    assert set(cluster.image.topic_ids) == {"a"}
