"""What the controller decides about nodes, partitions and leaders, also over random histories."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import replace

import pytest

from penstock_controller.state import cluster as cluster_state
from penstock_controller.state import directories, elections, gateways, isr, nodes, topics
from penstock_controller.state.generation import Context, Generated, NextCommand
from penstock_controller.state.partitions import Rules, change_partition
from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.levels import level_of
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

TOPIC = TopicId(b"t" * 16)


class Cluster:
    """An image and the commands that move it, as the worker would."""

    def __init__(self, seed: int = 1, *, level: int = 1) -> None:
        self.image = MetadataImage()
        self.rng = random.Random(seed)
        self.alive: set[NodeId] = set()
        self.now_ms = 0
        self.do(cluster_state.found_cluster(self.context, level))

    @property
    def context(self) -> Context:
        return Context(self.image, self.rng, alive=lambda n: n in self.alive, now_ms=self.now_ms)

    def do(self, generated: Generated[object]) -> object:
        if records := generated.all_records():
            self.image = self.image.apply(records, self.image.version + 1)
        return generated.reply

    def register(self, node_id: int, **fields: object) -> api.RegisterNodeResponse:
        request = api.RegisterNodeRequest(
            node_id=node_id, directory_id=uuid.UUID(int=max(node_id, 1) + 1000).bytes, clean_shutdown=True
        )
        if (level := level_of(self.image)) > 1:
            request.process.feature_level = level
        for key, value in fields.items():
            if key in ("damaged", "gone"):
                getattr(request, key).extend(value)
            elif key == "process":
                request.process.CopyFrom(value)  # type: ignore[arg-type]
            else:
                setattr(request, key, value)
        generated = nodes.register_node(self.context, request)
        self.do(generated)
        return generated.reply

    def epoch(self, node_id: int) -> int:
        return self.image.nodes[NodeId(node_id)].node_epoch

    def unfence(self, node_id: int) -> None:
        self.do(nodes.unfence_node(self.context, NodeId(node_id), self.epoch(node_id)))

    def fence(self, node_id: int) -> None:
        self.do(nodes.fence_node(self.context, NodeId(node_id), self.epoch(node_id)))

    def drain(self, node_id: int) -> None:
        self.do(nodes.drain_node(self.context, NodeId(node_id), self.epoch(node_id)))

    def fill(self, node_id: int, *, full: bool = True) -> None:
        self.do(
            nodes.note_space(self.context, NodeId(node_id), self.epoch(node_id), disk_full=full),
        )

    def up(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.register(node_id)
            self.unfence(node_id)

    def create(
        self, name: str = "t", assignments: Iterable[Iterable[int]] = ((1, 2, 3),), **configs: str
    ) -> None:
        topic = api.NewTopic(name=name, partition_count=-1, replication_factor=-1)
        for node_ids in assignments:
            topic.assignments.add(node_ids=node_ids)
        for key, value in configs.items():
            topic.configs[key.replace("_", ".")] = value
        reply = self.do(topics.create_topics(self.context, api.CreateTopicsRequest(topics=[topic])))
        assert isinstance(reply, api.CreateTopicsResponse)
        assert not reply.topics[0].error.code, reply

    def partition(self, name: str = "t", index: int = 0) -> PartitionImage:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.partitions[index]

    def propose(self, members: Iterable[int], name: str = "t", **changes: object) -> api.IsrProposalResult:
        old = self.partition(name)
        proposal = api.IsrProposal(
            topic_id=old.topic_id,
            partition=0,
            leader_epoch=old.leader_epoch,
            partition_epoch=old.partition_epoch,
            new_isr=[api.IsrMember(node_id=n, node_epoch=self.epoch(n)) for n in members],
        )
        sender = changes.pop("sender", old.leader)
        for key, value in changes.items():
            setattr(proposal, key, value)
        request = api.AlterPartitionsRequest(
            node_id=sender,  # type: ignore[arg-type]
            node_epoch=self.epoch(sender),  # type: ignore[arg-type]
            proposals=[proposal],
        )
        reply = self.do(isr.alter_partitions(self.context, request))
        assert isinstance(reply, api.AlterPartitionsResponse)
        assert not reply.error.code, reply
        return reply.results[0]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.up(1, 2, 3)
    return made


# --- change_partition -----------------------------------------------------------------


def partition(**changes: object) -> PartitionImage:
    base = PartitionImage(
        topic_id=TOPIC,
        partition=0,
        replicas=(NodeId(1), NodeId(2), NodeId(3)),
        isr=(NodeId(1), NodeId(2), NodeId(3)),
        leader=NodeId(1),
        leader_epoch=LeaderEpoch(5),
        partition_epoch=9,
        last_known_leader=NodeId(1),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def rules(*active: int, min_isr: int = 2, unclean: bool = False) -> Rules:
    return Rules(lambda n: n in active, min_isr, unclean)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(n) for n in numbers)


def test_nothing_changes_when_all_is_well() -> None:
    assert change_partition(partition(), rules(1, 2, 3)) is None


def test_leader_moves_to_the_first_of_the_assignment() -> None:
    new = change_partition(partition(), rules(2, 3), isr=ids(2, 3))
    assert new is not None
    assert (new.leader, new.isr, new.elr) == (2, ids(2, 3), ())
    assert (new.leader_epoch, new.partition_epoch) == (6, 10)


def test_shrinking_keeps_the_leader_epoch() -> None:
    new = change_partition(partition(), rules(1, 2, 3), isr=ids(1, 2))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.partition_epoch) == (1, 5, 10)


def test_members_that_leave_below_min_isr_become_elr() -> None:
    one = change_partition(partition(isr=ids(1, 2)), rules(1, 3), isr=ids(1))
    assert one is not None
    assert (one.isr, one.elr, one.leader) == (ids(1), ids(2), 1)
    none = change_partition(one, rules(3), isr=())
    assert none is not None
    # Node 3 is up, but was out of the ISR before: it may lack acknowledged data.
    assert (none.isr, none.leader, none.last_known_leader) == ((), NO_NODE, 1)
    assert set(none.elr) == set(ids(1, 2))
    back = change_partition(none, rules(2, 3))
    assert back is not None
    assert (back.leader, back.isr, back.elr) == (2, ids(2), ids(1))
    assert not back.recovering
    full = change_partition(back, rules(2, 3), isr=ids(2, 3))
    assert full is not None
    assert (full.isr, full.elr) == (ids(2, 3), ())


def test_lost_replicas_leave_isr_and_elr() -> None:
    old = partition(isr=(), elr=ids(1, 2), leader=NO_NODE)
    new = change_partition(old, rules(), lost=ids(2))
    assert new is not None
    assert new.elr == ids(1)


def test_last_known_leader_is_the_last_resort() -> None:
    old = partition(isr=(), elr=(), leader=NO_NODE, last_known_leader=NodeId(2))
    assert change_partition(old, rules(1, 3)) is None
    new = change_partition(old, rules(1, 2, 3))
    assert new is not None
    assert (new.leader, new.isr, new.recovering) == (2, ids(2), True)


def test_unclean_election_only_when_allowed() -> None:
    old = partition(isr=(), elr=ids(1, 2), leader=NO_NODE)
    assert change_partition(old, rules(3)) is None
    new = change_partition(old, rules(3, unclean=True))
    assert new is not None
    assert (new.leader, new.isr, new.elr, new.recovering) == (3, ids(3), (), True)


def test_preferred_only_from_the_isr() -> None:
    old = partition(isr=ids(2, 3), leader=NodeId(2), last_known_leader=NodeId(2))
    assert change_partition(old, rules(1, 2, 3), prefer_first=True) is None
    new = change_partition(partition(leader=NodeId(2)), rules(1, 2, 3), prefer_first=True)
    assert new is not None
    assert new.leader == 1


# --- registration --------------------------------------------------------------------------


def test_node_starts_fenced_with_its_version_as_epoch() -> None:
    cluster = Cluster()
    reply = cluster.register(-1)
    assert (reply.node_id, reply.node_epoch, reply.version) == (1, 2, 2)
    assert reply.cluster_id == cluster.image.cluster_id
    assert cluster.image.nodes[NodeId(1)].fenced


def test_free_ids_are_the_lowest_and_follow_the_directory() -> None:
    cluster = Cluster()
    for number in (1, 2, 4):
        cluster.register(number)
    other = uuid.uuid4().bytes
    assert cluster.register(-1, directory_id=other).node_id == 3
    assert cluster.register(-1, directory_id=other).node_id == 3


@pytest.mark.parametrize(
    ("node_id", "fields", "code"),
    [
        (1, {"cluster_id": b"x" * 16}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (1, {"directory_id": b"y" * 16}, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        (7, {"directory_id": uuid.UUID(int=1001).bytes}, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        (0, {}, ErrorCode.INVALID_REQUEST),
        (-2, {}, ErrorCode.INVALID_REQUEST),
        (8, {"directory_id": b"short"}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_registrations(
    cluster: Cluster, node_id: int, fields: dict[str, object], code: ErrorCode
) -> None:
    before = cluster.image
    reply = cluster.register(node_id, **fields)
    assert reply.error.code == code
    assert reply.error.message
    assert cluster.image is before


def test_a_dead_nodes_id_may_be_taken_with_a_new_directory(cluster: Cluster) -> None:
    cluster.create()
    cluster.fence(2)
    cluster.alive = {NodeId(2)}
    assert cluster.register(2, directory_id=b"n" * 16).error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.alive = set()
    assert not cluster.register(2, directory_id=b"n" * 16).error.code


def test_one_command_holds_one_registration_of_a_node(cluster: Cluster) -> None:
    request = api.RegisterNodeRequest(node_id=1, directory_id=uuid.UUID(int=1001).bytes)
    context = cluster.context
    after = context.after(nodes.register_node(context, request).records)
    with pytest.raises(NextCommand):
        nodes.register_node(after, request)


def test_quick_restart_fences_the_new_incarnation(cluster: Cluster) -> None:
    cluster.create()
    cluster.register(1)
    held = cluster.partition()
    assert (held.leader, held.isr) == (2, ids(2, 3))
    assert cluster.image.nodes[NodeId(1)].fenced
    # Stale epochs of the old incarnation do nothing.
    assert not nodes.fence_node(cluster.context, NodeId(1), 2).records
    assert not nodes.unfence_node(cluster.context, NodeId(1), 2).records
    cluster.unfence(1)
    assert not cluster.image.nodes[NodeId(1)].fenced
    assert cluster.partition().isr == ids(2, 3)
    assert cluster.propose([1, 2, 3]).error.code == 0
    assert cluster.partition().isr == ids(1, 2, 3)


def test_all_killed_at_once_come_back(cluster: Cluster) -> None:
    cluster.create()
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    dead = cluster.partition()
    assert (dead.leader, dead.isr, set(dead.elr)) == (NO_NODE, (), {2, 3})
    cluster.up(1)
    # It left the ISR while two others went on: it may lack acknowledged data.
    assert cluster.partition().leader == NO_NODE
    cluster.register(2, clean_shutdown=False)
    assert cluster.partition().leader == NO_NODE
    cluster.unfence(2)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, ids(2))
    cluster.up(3)
    cluster.propose([1, 2, 3])
    assert cluster.partition().isr == ids(1, 2, 3)


def test_all_restarted_before_anybody_was_fenced_come_back(cluster: Cluster) -> None:
    cluster.create()
    for node_id in (1, 2, 3):
        cluster.register(node_id, clean_shutdown=False)
    for node_id in (1, 2, 3):
        cluster.unfence(node_id)
    assert cluster.partition().leader in (2, 3)


def test_damaged_replica_may_not_lead(cluster: Cluster) -> None:
    cluster.create()
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    topic_id = cluster.partition().topic_id
    damaged = [api.TopicPartitionId(topic_id=topic_id, partition=0)]
    cluster.register(3, damaged=damaged)
    cluster.unfence(3)
    # The last known leader is an exception only once nobody else is left.
    assert (cluster.partition().leader, cluster.partition().elr) == (NO_NODE, ids(2))
    cluster.up(2)
    assert cluster.partition().leader == 2


def test_unclean_stop_counts_for_replicated_topics_only(cluster: Cluster) -> None:
    cluster.create("fsync")
    cluster.create("memory", penstock_durability="replicated")
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    assert set(cluster.partition("memory").elr) == {2, 3}
    cluster.register(2, clean_shutdown=False)
    assert set(cluster.partition("fsync").elr) == {2, 3}
    assert cluster.partition("memory").elr == ids(3)
    cluster.unfence(2)
    assert cluster.partition("fsync").leader == 2
    assert cluster.partition("memory").leader == NO_NODE
    # When nobody qualifies any more: the last known leader, recovering.
    cluster.register(3, clean_shutdown=False)
    cluster.unfence(3)
    assert (cluster.partition("memory").leader, cluster.partition("memory").recovering) == (3, True)


NEW_DIRECTORY = b"n" * 16


def test_a_last_known_leader_with_a_new_disk_leads_nobody_to_nothing(cluster: Cluster) -> None:
    """The others would cut what they have down to its empty log, though unclean election is off."""
    cluster.create(min_insync_replicas="1")
    assert cluster.propose([1]).error.code == 0
    cluster.fence(1)
    before = cluster.partition()
    assert (before.leader, before.isr, before.elr, before.last_known_leader) == (NO_NODE, (), ids(1), 1)
    cluster.register(1, directory_id=NEW_DIRECTORY)
    cluster.unfence(1)
    held = cluster.partition()
    assert (held.leader, held.isr, held.elr, held.last_known_leader) == (NO_NODE, (), (), NO_NODE)
    assert held.leader_epoch == before.leader_epoch
    assert held.partition_epoch > before.partition_epoch
    # A person may say that what others have is to count.
    cluster.fence(1)
    request = api.ElectLeadersRequest(unclean=True)
    cluster.do(elections.elect_leaders(cluster.context, request))
    assert (cluster.partition().leader, cluster.partition().recovering) == (2, True)


@pytest.mark.parametrize("is_gone", [True, False])
def test_nor_does_one_whose_log_alone_is_gone(cluster: Cluster, is_gone: bool) -> None:
    """Nor of any other partition of the node. One that merely ends too early has most of what there was."""
    for name in ("t", "whole"):
        cluster.create(name, min_insync_replicas="1")
        assert cluster.propose([1], name).error.code == 0
    cluster.fence(1)
    damaged = [api.TopicPartitionId(topic_id=cluster.partition("t").topic_id, partition=0)]
    cluster.register(1, damaged=damaged, gone=damaged if is_gone else [])
    cluster.unfence(1)
    held = cluster.partition("t")
    assert (held.leader, held.last_known_leader) == ((NO_NODE, NO_NODE) if is_gone else (1, 1))
    assert cluster.partition("whole").leader == 1


def test_nor_does_one_that_was_left_out_before_its_disk_was_replaced(cluster: Cluster) -> None:
    cluster.create("memory", min_insync_replicas="1", penstock_durability="replicated")
    assert cluster.propose([1], "memory").error.code == 0
    cluster.fence(1)
    cluster.register(1, clean_shutdown=False)
    assert (cluster.partition("memory").elr, cluster.partition("memory").last_known_leader) == ((), 1)
    cluster.register(1, directory_id=NEW_DIRECTORY)
    cluster.unfence(1)
    assert (cluster.partition("memory").leader, cluster.partition("memory").last_known_leader) == (-1, -1)


def test_the_only_replica_begins_anew_with_a_new_disk(cluster: Cluster) -> None:
    cluster.create(assignments=[[2]])
    cluster.fence(2)
    cluster.register(2, directory_id=NEW_DIRECTORY)
    cluster.unfence(2)
    assert (cluster.partition().leader, cluster.partition().recovering) == (2, True), (
        "nobody else has anything"
    )


def test_a_leader_elsewhere_is_none_of_a_new_disks_business(cluster: Cluster) -> None:
    cluster.create()
    cluster.fence(1)
    cluster.register(1, directory_id=NEW_DIRECTORY)
    cluster.unfence(1)
    held = cluster.partition()
    assert (held.leader, held.isr, held.last_known_leader) == (2, ids(2, 3), 2)


def test_single_replica_comes_back(cluster: Cluster) -> None:
    cluster.create(assignments=[[2]])
    cluster.fence(2)
    assert cluster.partition().leader == NO_NODE
    cluster.register(2, clean_shutdown=False)
    cluster.unfence(2)
    assert (cluster.partition().leader, cluster.partition().recovering) == (2, False)


# --- draining -------------------------------------------------------------------------------


def test_drain_moves_what_can_be_moved(cluster: Cluster) -> None:
    cluster.create("many")
    cluster.create("alone", assignments=[[1]])
    cluster.drain(1)
    assert (cluster.partition("many").leader, cluster.partition("many").isr) == (2, ids(2, 3))
    assert (cluster.partition("alone").leader, cluster.partition("alone").isr) == (1, ids(1))
    assert not nodes.still_leads(cluster.image, NodeId(1))
    assert cluster.propose([1, 2, 3], "many").error.code == ErrorCode.INELIGIBLE_REPLICA
    # It changed its mind (or its disk is well again).
    cluster.unfence(1)
    assert not cluster.image.nodes[NodeId(1)].in_controlled_shutdown
    assert cluster.propose([1, 2, 3], "many").error.code == 0


def test_drained_node_that_stops_is_fenced(cluster: Cluster) -> None:
    cluster.create("alone", assignments=[[1]])
    cluster.drain(1)
    cluster.fence(1)
    assert cluster.partition("alone").leader == NO_NODE
    node = cluster.image.nodes[NodeId(1)]
    assert (node.fenced, node.in_controlled_shutdown) == (True, False)


def harmed(cluster: Cluster, node_id: int, *leaving: int) -> list[str]:
    return nodes.harmed_by_leaving(cluster.image, NodeId(node_id), ids(*leaving))


def test_a_node_is_missed_where_its_leaving_takes_partitions_below_min_isr(cluster: Cluster) -> None:
    cluster.create("many")
    cluster.create("alone", assignments=[[2]])
    cluster.create("two", assignments=[[2, 3]])
    assert harmed(cluster, 2, 2) == [], "everybody is in sync"
    cluster.drain(1)
    assert harmed(cluster, 2, 1, 2) == ["many-0"], "1 may come back; what has one replica needs no wait"
    assert harmed(cluster, 3, 1, 3) == ["many-0"]
    assert harmed(cluster, 2, 1, 2, 3) == [], "all stop, so nobody is served by a wait"
    cluster.unfence(1)
    assert cluster.propose([1, 2, 3], "many").error.code == 0
    assert harmed(cluster, 2, 2) == [], "1 is back"


# --- ISR proposals ------------------------------------------------------------------------------


def test_proposal_errors(cluster: Cluster) -> None:
    cluster.create()
    other = cluster.register(9)
    assert not other.error.code
    cases = [
        (cluster.propose([1, 2], leader_epoch=1), ErrorCode.NOT_CONTROLLER),
        (cluster.propose([1, 2], partition_epoch=7), ErrorCode.NOT_CONTROLLER),
        (cluster.propose([1, 2], sender=2), ErrorCode.INVALID_REQUEST),
        (cluster.propose([2, 3]), ErrorCode.INVALID_REQUEST),
        (cluster.propose([1, 1]), ErrorCode.INVALID_REQUEST),
        (cluster.propose([1, 9]), ErrorCode.INVALID_REQUEST),
        (cluster.propose([1], topic_id=b"u" * 16), ErrorCode.UNKNOWN_TOPIC_ID),
        (cluster.propose([1], partition=4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [case.error.code for case, _ in cases] == [code for _, code in cases]
    assert all(case.error.message for case, _ in cases)
    assert cluster.propose([1, 2]).error.code == 0
    assert cluster.propose([1], partition_epoch=0).error.code == ErrorCode.INVALID_UPDATE_VERSION
    cluster.fence(1)
    late = cluster.propose([2], leader_epoch=0)
    assert late.error.code == ErrorCode.FENCED_LEADER_EPOCH
    assert cluster.propose([1, 2]).error.code == ErrorCode.INELIGIBLE_REPLICA


def test_stale_member_epoch_is_ineligible(cluster: Cluster) -> None:
    cluster.create()
    cluster.propose([1])
    old = cluster.partition()
    stale = cluster.epoch(2)
    cluster.register(2)
    cluster.unfence(2)
    proposal = api.IsrProposal(
        topic_id=old.topic_id,
        partition=0,
        leader_epoch=old.leader_epoch,
        partition_epoch=cluster.partition().partition_epoch,
        new_isr=[api.IsrMember(node_id=1, node_epoch=-1), api.IsrMember(node_id=2, node_epoch=stale)],
    )
    request = api.AlterPartitionsRequest(node_id=1, node_epoch=cluster.epoch(1), proposals=[proposal])
    reply = isr.alter_partitions(cluster.context, request).reply
    assert reply.results[0].error.code == ErrorCode.INELIGIBLE_REPLICA


def test_unregistered_or_old_leader_is_refused(cluster: Cluster) -> None:
    request = api.AlterPartitionsRequest(node_id=1, node_epoch=1)
    reply = isr.alter_partitions(cluster.context, request).reply
    assert reply.error.code == ErrorCode.STALE_BROKER_EPOCH


def test_recovering_leader_grows_its_isr_only_after_recovery(cluster: Cluster) -> None:
    cluster.create(assignments=[[1, 2]], unclean_leader_election_enable="true")
    cluster.propose([1])
    cluster.fence(1)
    held = cluster.partition()
    assert (held.leader, held.recovering) == (2, True)
    cluster.up(1)
    assert cluster.propose([1, 2]).error.code == ErrorCode.INVALID_REQUEST
    result = cluster.propose([2], recovered=True)
    assert (result.error.code, result.state.recovering) == (0, False)
    assert cluster.propose([1, 2]).error.code == 0


# --- full disks -----------------------------------------------------------------------------------


def elect_ones_preferred(cluster: Cluster) -> int:
    changed = cluster.do(elections.elect_preferred(cluster.context, None, lambda _: True, 100))
    assert isinstance(changed, int)
    return changed


def test_a_node_with_a_full_disk_gives_up_what_others_can_lead_and_stays_in_every_isr(
    cluster: Cluster,
) -> None:
    cluster.create("many")
    cluster.create("alone", assignments=[[1]])
    cluster.create("lagging", assignments=[[1, 2]])
    cluster.propose([1], "lagging")
    before = {name: cluster.partition(name) for name in ("many", "alone", "lagging")}
    cluster.fill(1)
    assert cluster.image.nodes[NodeId(1)].disk_full
    assert cluster.image.nodes[NodeId(1)].active
    many = cluster.partition("many")
    assert (many.leader, many.isr, many.elr) == (2, before["many"].isr, ())
    assert many.leader_epoch == before["many"].leader_epoch + 1
    assert cluster.partition("alone") == before["alone"]
    assert cluster.partition("lagging") == before["lagging"]


def test_a_full_leader_gives_way_as_soon_as_a_replica_with_room_joins_the_isr(cluster: Cluster) -> None:
    cluster.create(assignments=[[1, 2]])
    cluster.propose([1])
    cluster.fill(1)
    assert cluster.partition().leader == 1
    assert cluster.propose([1, 2]).error.code == ErrorCode.NEW_LEADER_ELECTED
    assert (cluster.partition().leader, cluster.partition().isr) == (2, ids(1, 2))


def test_when_every_disk_is_full_nobody_moves_and_the_first_with_room_leads(cluster: Cluster) -> None:
    cluster.create()
    for node_id in (3, 2, 1):
        cluster.fill(node_id)
    held = cluster.partition()
    assert held.leader == 1
    cluster.fill(3, full=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, held.isr)
    cluster.fill(2, full=False)
    assert cluster.partition().leader == 3, "a leader with room stays"


def test_leadership_does_not_go_back_to_a_preferred_leader_whose_disk_is_full(cluster: Cluster) -> None:
    cluster.create()
    cluster.fill(1)
    assert elect_ones_preferred(cluster) == 0
    key = cluster.partition().key
    request = api.ElectLeadersRequest(
        partitions=[api.TopicPartitionId(topic_id=key.topic_id, partition=key.partition)]
    )
    reply = elections.elect_leaders(cluster.context, request).reply
    assert reply.results[0].error.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert "full" in reply.results[0].error.message
    cluster.fill(1, full=False)
    assert cluster.partition().leader == 2, "room alone moves nothing"
    assert elect_ones_preferred(cluster) == 1
    assert cluster.partition().leader == 1


def test_a_full_replica_leads_when_the_only_other_one_is_lost(cluster: Cluster) -> None:
    cluster.create(assignments=[[1, 2]])
    cluster.fill(1)
    assert cluster.partition().leader == 2
    cluster.fence(2)
    assert (cluster.partition().leader, cluster.partition().isr) == (1, ids(1))


def test_of_those_left_one_with_room_is_elected(cluster: Cluster) -> None:
    cluster.create()
    cluster.fill(2)
    cluster.fence(1)
    assert cluster.partition().leader == 3
    cluster.create("new", assignments=[[2, 3]])
    assert (cluster.partition("new").leader, cluster.partition("new").isr) == (3, ids(2, 3))
    cluster.create("nowhere_else", assignments=[[2]])
    assert cluster.partition("nowhere_else").leader == 2


def test_an_unclean_election_prefers_a_replica_with_room(cluster: Cluster) -> None:
    cluster.create(unclean_leader_election_enable="true", min_insync_replicas="1")
    cluster.propose([1])
    cluster.fill(2)
    cluster.fence(1)
    assert (cluster.partition().leader, cluster.partition().recovering) == (3, True)


def test_news_of_an_older_registration_or_of_a_fenced_node_change_nothing(cluster: Cluster) -> None:
    cluster.create()
    stale = nodes.note_space(cluster.context, NodeId(1), cluster.epoch(1) - 1, disk_full=True)
    assert not stale.all_records()
    cluster.fill(1)
    again = nodes.note_space(cluster.context, NodeId(1), cluster.epoch(1), disk_full=True)
    assert not again.all_records()
    cluster.fence(1)
    fenced = nodes.note_space(cluster.context, NodeId(1), cluster.epoch(1), disk_full=False)
    assert not fenced.all_records()
    cluster.up(1)
    assert not cluster.image.nodes[NodeId(1)].disk_full, "a new registration begins with room"


# --- gateways ----------------------------------------------------------------------------------------


def test_gateways_register_and_go(cluster: Cluster) -> None:
    request = api.RegisterGatewayRequest(gateway_id="g", grpc=common.Endpoint(host="h", port=1))
    first = gateways.register_gateway(cluster.context, request)
    cluster.do(first)
    second = gateways.register_gateway(cluster.context, request)
    cluster.do(second)
    assert second.reply.gateway_epoch > first.reply.gateway_epoch
    assert not gateways.remove_gateway(cluster.context, "g", first.reply.gateway_epoch).records
    cluster.do(gateways.remove_gateway(cluster.context, "g", second.reply.gateway_epoch))
    assert not cluster.image.gateways
    wrong = gateways.register_gateway(
        cluster.context, api.RegisterGatewayRequest(gateway_id="g", cluster_id=b"q" * 16)
    )
    assert wrong.reply.error.code == ErrorCode.INCONSISTENT_CLUSTER_ID
    nameless = gateways.register_gateway(cluster.context, api.RegisterGatewayRequest())
    assert nameless.reply.error.code == ErrorCode.INVALID_REQUEST


# --- random histories -----------------------------------------------------------------------------------


class Model(Cluster):
    """A cluster whose partition also holds data: acknowledged writes must survive every election."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.up(1, 2, 3)
        self.create()
        self.acked = 0
        self.data: dict[NodeId, int] = dict.fromkeys(ids(1, 2, 3), 0)

    def active(self, node_id: NodeId) -> bool:
        return self.image.nodes[node_id].active

    def check(self, old: PartitionImage) -> None:
        new = self.partition()
        assert set(new.isr) <= set(new.replicas)
        assert not set(new.elr) & set(new.isr)
        assert new.leader == NO_NODE or new.leader in new.isr
        assert all(not self.image.nodes[n].fenced for n in new.isr)
        assert len(new.isr) < 2 or not new.elr
        assert not new.recovering
        if new.leader != NO_NODE and self.image.nodes[new.leader].disk_full:
            others = [n for n in new.isr if self.active(n) and n != new.leader]
            assert all(self.image.nodes[n].disk_full for n in others), "another one has room"
        if new != old:
            assert new.partition_epoch == old.partition_epoch + 1
            assert new.leader_epoch == old.leader_epoch + (new.leader != old.leader)
        if new.leader != NO_NODE:
            assert self.data[new.leader] >= self.acked, "an election lost acknowledged data"
            # Who joins or follows copies the leader.
            for node_id in new.isr:
                self.data[node_id] = max(self.data[node_id], self.data[new.leader])

    def step(self) -> None:
        old = self.partition()
        node_id = self.rng.choice(ids(1, 2, 3))
        node = self.image.nodes[node_id]
        what = self.rng.randrange(8)
        if what == 0:
            self.fence(node_id)
        elif what == 1 and node.fenced:
            self.register(node_id, clean_shutdown=self.rng.random() < 0.5)
        elif what == 2:
            self.unfence(node_id)
        elif what == 3:
            self.drain(node_id)
        elif what == 4 and old.leader != NO_NODE:
            members = [n for n in old.replicas if n == old.leader or self.rng.random() < 0.5]
            for member in members:
                # A leader proposes whom it has seen to hold all that it has itself.
                self.data[member] = max(self.data[member], self.data[old.leader])
            self.propose(members)
        elif what == 5:
            self.do(elections.elect_preferred(self.context, None, lambda _: True, 10))
        elif what == 6:
            self.write()
            return
        elif what == 7:
            self.fill(node_id, full=self.rng.random() < 0.5)
            assert self.partition().isr == old.isr
            assert self.partition().elr == old.elr
        self.check(old)

    def write(self) -> None:
        """An acks=all write: acknowledged by every ISR member, when there are enough."""
        held = self.partition()
        if held.leader != NO_NODE and len(held.isr) >= 2:
            self.acked += 1
            for node_id in held.isr:
                self.data[node_id] = self.acked


def test_random_histories_lose_nothing_and_end_with_a_leader() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    for run in range(60):
        model = Model(seed + run)
        for _ in range(150):
            model.step()
        for node_id in (1, 2, 3):
            old = model.partition()
            if model.image.nodes[NodeId(node_id)].fenced:
                model.register(node_id)
                model.check(old)
                old = model.partition()
            model.unfence(node_id)
            model.check(old)
            old = model.partition()
            model.fill(node_id, full=False)
            model.check(old)
        assert model.partition().leader != NO_NODE
        assert model.propose([1, 2, 3]).error.code == 0
        assert model.partition().isr == ids(1, 2, 3)


# --- what an operator says of a node ---------------------------------------------------------


def cordon(cluster: Cluster, node_id: int, *, draining: bool = False) -> None:
    policy = pb.NodePolicyRecord(node_id=node_id, cordoned=True, draining=draining)
    cluster.do(Generated(True, [pb.MetadataRecord(node_policy=policy)]))


def test_a_cordoned_node_gets_no_new_replicas_and_counts_for_no_default(cluster: Cluster) -> None:
    cordon(cluster, 2)
    topic = api.NewTopic(name="new", partition_count=4, replication_factor=-1)
    cluster.do(topics.create_topics(cluster.context, api.CreateTopicsRequest(topics=[topic])))
    made = cluster.image.topic("new")
    assert made is not None
    assert {p.replicas for p in made.partitions.values()} <= {(1, 3), (3, 1)}
    three = api.NewTopic(name="three", partition_count=1, replication_factor=3)
    reply = cluster.do(topics.create_topics(cluster.context, api.CreateTopicsRequest(topics=[three])))
    assert isinstance(reply, api.CreateTopicsResponse)
    assert reply.topics[0].error.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_cordoned_node_leads_only_what_nobody_else_can_and_stays_in_sync(cluster: Cluster) -> None:
    cluster.create(assignments=[[2, 1, 3]])
    cluster.create("alone", assignments=[[2]])
    assert (cluster.partition().leader, cluster.partition("alone").leader) == (2, 2)
    cordon(cluster, 2)
    cluster.fence(1)
    assert cluster.partition().leader == 3, "any change of the partition gives its leadership away"
    cluster.up(1)
    cluster.propose([3, 2, 1])
    assert cluster.do(elections.elect_preferred(cluster.context, None, lambda _: True, 100)) == 0
    assert set(cluster.partition().isr) == {1, 2, 3}
    assert cluster.partition("alone").leader == 2


def test_a_retired_directory_never_comes_back_and_its_id_is_not_given_again(cluster: Cluster) -> None:
    directory = cluster.image.nodes[NodeId(2)].directory_id
    cluster.fence(2)
    retired = pb.RetiredDirectoryRecord(directory_id=directory, node_id=2, operation_id=77)
    gone = pb.NodeRemovedRecord(node_id=2)
    cluster.do(
        Generated(True, [pb.MetadataRecord(retired_directory=retired), pb.MetadataRecord(node_removed=gone)])
    )
    refused = cluster.register(2)
    assert refused.error.code == ErrorCode.POLICY_VIOLATION
    assert "node 2" in refused.error.message
    assert "operation 77" in refused.error.message
    granted = cluster.register(-1, directory_id=b"n" * 16)
    assert granted.node_id == 4
    assert not cluster.register(2, directory_id=b"m" * 16).error.code, "who asks for it by name may have it"


# --- directories that were replaced -----------------------------------------------------------


OLD, NEW, OTHER = b"a" * 16, b"b" * 16, b"c" * 16


def replaced_node(ms: int = 0) -> Cluster:
    """Node 2 had OLD, is down, and has come back with NEW."""
    cluster = Cluster(level=3)
    cluster.up(1, 3)
    cluster.register(2, directory_id=OLD)
    cluster.unfence(2)
    cluster.fence(2)
    cluster.now_ms = ms
    assert not cluster.register(2, directory_id=NEW).error.code
    return cluster


def replace_in_place(cluster: Cluster, operation_id: int = 77) -> None:
    cluster.do(Generated(True, directories.replaced(cluster.image, [NodeId(2)], operation_id)))


def test_a_directory_that_was_replaced_may_come_back_until_an_operation_retires_it() -> None:
    """The new one may be the wrong volume, and the old one all that there is."""
    cluster = replaced_node()
    cluster.fence(2)
    assert not cluster.register(2, directory_id=OLD).error.code
    assert [r.directory_id for r in directories.former(cluster.image, NodeId(2))] == [NEW]
    # What the node has now is never retired, though it had it before.
    replace_in_place(cluster)
    assert directories.retired(cluster.image, OLD) is None
    assert not cluster.register(2, directory_id=OLD).error.code


def test_a_directory_that_was_replaced_for_good_is_refused_by_name() -> None:
    cluster = replaced_node(ms=1_795_745_045_000)
    replace_in_place(cluster)
    for alive in (True, False):
        cluster.alive = {NodeId(2)} if alive else set()
        refused = cluster.register(2, directory_id=OLD)
        assert refused.error.code == ErrorCode.POLICY_VIOLATION, (
            "not as one that may be let in a little later"
        )
        assert refused.error.message == (
            f"directory {OLD.hex()} was that of node 2 until 2026-11-27 02:04:05 UTC, when the node came with "
            f"directory {NEW.hex()} in its place, which operation 77 has seen filled; start node 2 with the directory "
            "that it has now, or empty this one and give it another node_id"
        )
        # The process ends and leaves the directory as it is.
        assert not refused.retired_by_operation
    assert cluster.image.nodes[NodeId(2)].directory_id == NEW
    assert cluster.register(-1, directory_id=OLD).error.code, "nor under an id that is free"
    cluster.alive = set()
    assert not cluster.register(2, directory_id=NEW).error.code
    # An empty disk once more: the id goes on, and what was refused stays so.
    cluster.fence(2)
    assert not cluster.register(2, directory_id=OTHER).error.code
    replace_in_place(cluster, 78)
    assert "operation 77" in cluster.register(2, directory_id=OLD).error.message
    assert "operation 78" in cluster.register(2, directory_id=NEW).error.message


def test_directories_that_a_removed_node_had_long_before_are_refused_by_name() -> None:
    """Whether its removal has retired them or an operation before; their processes leave them as they are."""
    cluster = replaced_node(ms=1_795_745_045_000)
    cluster.fence(2)
    assert not cluster.register(2, directory_id=OTHER).error.code
    last = pb.RetiredDirectoryRecord(directory_id=OTHER, node_id=2, operation_id=78)
    records = [pb.MetadataRecord(retired_directory=last)]
    records.append(pb.MetadataRecord(node_removed=pb.NodeRemovedRecord(node_id=2)))
    cluster.do(Generated(True, [*records, *directories.replaced(cluster.image, [NodeId(2)], 78)]))
    refused = cluster.register(2, directory_id=OLD)
    assert refused.error.message == (
        f"directory {OLD.hex()} was that of node 2 until 2026-11-27 02:04:05 UTC, when the node came with directory "
        f"{NEW.hex()} in its place; the node was removed by operation 78; empty this directory to start a new node "
        "with it"
    )
    assert not refused.retired_by_operation
    assert cluster.register(2, directory_id=OTHER).retired_by_operation == 78
    # Another node has the id now: that one is not what the old directory was.
    assert not cluster.register(2, directory_id=b"d" * 16).error.code
    assert cluster.register(2, directory_id=OLD).error.message == refused.error.message


def test_a_directory_that_was_replaced_for_good_never_leads_with_what_it_has() -> None:
    cluster = replaced_node()
    cluster.unfence(2)
    cluster.create("alone", assignments=[[2]])
    replace_in_place(cluster)
    cluster.fence(2)
    assert (cluster.partition("alone").leader, cluster.partition("alone").elr) == (NO_NODE, (2,))
    assert cluster.register(2, directory_id=OLD).error.code
    assert cluster.partition("alone").elr == (2,), "what it has counts on"
    assert not cluster.register(2, directory_id=NEW).error.code
    cluster.unfence(2)
    assert (cluster.partition("alone").leader, cluster.partition("alone").recovering) == (2, False)


def test_what_was_retired_stays_so_in_a_snapshot_and_when_the_node_is_gone() -> None:
    cluster = replaced_node()
    replace_in_place(cluster)
    gone = pb.NodeRemovedRecord(node_id=2)
    cluster.fence(2)
    cluster.do(Generated(True, [pb.MetadataRecord(node_removed=gone)]))
    snapshot = MetadataImage().apply(list(cluster.image.to_records()), 1)
    cluster.image = replace(snapshot, version=cluster.image.version)
    assert cluster.register(2, directory_id=OLD).error.code == ErrorCode.POLICY_VIOLATION
    assert cluster.register(-1, directory_id=OTHER).node_id == 4, "node 2 is remembered as another one"


def test_no_registration_forgets_what_was_retired_for_good() -> None:
    """Who lets one in by mistake leaves the record, so that it shows, and the next one is refused."""
    cluster = replaced_node()
    replace_in_place(cluster)
    let_in = directories.came_with(cluster.context, NodeId(2), OLD)
    assert [r.retired_directory.directory_id for r in let_in] == [NEW]
    cluster.do(Generated(True, let_in))
    assert directories.retired(cluster.image, OLD) is not None
    # Nor does one that takes the place of such a directory.
    held = pb.NodeRecord(node_id=2, directory_id=OLD, fenced=True)
    cluster.do(Generated(True, [pb.MetadataRecord(node=held)]))
    assert not directories.came_with(cluster.context, NodeId(2), OTHER)


def test_few_directories_of_a_node_are_remembered() -> None:
    """A node whose disk is empty at each start."""
    cluster = replaced_node()
    for number in range(20):
        cluster.now_ms += 1_000
        cluster.fence(2)
        assert not cluster.register(2, directory_id=bytes([number]) * 16).error.code
    kept = [r.directory_id[0] for r in directories.former(cluster.image, NodeId(2))]
    assert kept == [15, 16, 17, 18], "19 is what it has"
    assert len(cluster.image.operations.retired) == directories.FORMER_MAX
    assert cluster.register(-1, directory_id=OTHER).node_id == 4


def test_below_level_3_nothing_of_directories_is_written() -> None:
    cluster = Cluster(level=2)
    cluster.up(1, 2)
    cluster.fence(2)
    assert not cluster.register(2, directory_id=NEW).error.code
    assert not cluster.image.operations.retired
