"""Three replicas, a model controller and a bad network: nothing acknowledged is ever lost.

Each run is one seed; a failing one prints it. Disks lose what was not flushed when a node
crashes, streams break with messages in flight, metadata arrives late, proposals' answers
get lost.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import PartitionImage
from penstock_storage_node.replication.effects import Effects
from penstock_storage_node.replication.following import Truncation
from penstock_storage_node.replication.receiver import FollowerReceiver, Outgoing
from penstock_storage_node.replication.replica import Change, PartitionReplica
from penstock_storage_node.replication.sender import DataFrame, LeaderSender, ReplicationSession
from unit.storage_node.replication.replica_model import ENTRY_BYTES, ModelLog

KEY = TopicPartition(TopicId(bytes(15) + b"\x01"), 0)
SETTINGS = TopicConfig.from_config({"min.insync.replicas": "2"}, 3)
LAG_MS = 300
IDS = tuple(NodeId(i) for i in (1, 2, 3))


class Controller:
    """Epoch-checked states of one partition, and who is alive."""

    def __init__(self) -> None:
        self.state = PartitionImage(
            KEY.topic_id,
            0,
            replicas=IDS,
            isr=IDS,
            leader=IDS[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
        )
        self.alive: dict[NodeId, int] = dict.fromkeys(IDS, 1)
        self.next_epoch = 2
        self.feeds: dict[NodeId, deque[PartitionImage]] = {n: deque() for n in IDS}
        self.publish()

    def publish(self) -> None:
        for feed in self.feeds.values():
            feed.append(self.state)

    def change(self, isr: tuple[NodeId, ...], leader: NodeId) -> None:
        s = self.state
        epoch = s.leader_epoch + (leader != s.leader)
        self.state = replace(
            s, isr=isr, leader=leader, leader_epoch=LeaderEpoch(epoch), partition_epoch=s.partition_epoch + 1
        )
        self.publish()

    def died(self, node: NodeId) -> None:
        del self.alive[node]
        isr = tuple(n for n in self.state.isr if n != node) or self.state.isr
        leader = self.state.leader
        if leader == node:
            leader = next((n for n in isr if n in self.alive), NO_NODE)
        self.change(isr, leader)

    def came_back(self, node: NodeId) -> int:
        self.alive[node] = self.next_epoch
        self.next_epoch += 1
        if self.state.leader == NO_NODE and node in self.state.isr:
            self.change(self.state.isr, node)
        return self.alive[node]

    def move_leader(self, rng: random.Random) -> None:
        able = [n for n in self.state.isr if n in self.alive]
        if able and self.state.leader != NO_NODE:
            self.change(self.state.isr, rng.choice(able))

    def decide(
        self, node: NodeId, term_epoch: int, members: dict[NodeId, int], partition_epoch: int
    ) -> ErrorCode:
        if (term_epoch, node) != (self.state.leader_epoch, self.state.leader):
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition_epoch != self.state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, epoch in members.items():
            if member not in self.alive or epoch not in (-1, self.alive[member]):
                return ErrorCode.INELIGIBLE_REPLICA
        self.change(tuple(members), self.state.leader)
        return ErrorCode.NONE


class Waiter:
    def __init__(self, world: World, offset: int, value: int) -> None:
        self.world, self.offset, self.value = world, offset, value

    def acknowledge(self, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self.world.acked[self.offset] = self.value


class Stream:
    """One follower's connection to one leader; both directions keep their order."""

    def __init__(self, leader: NodeId, sender: LeaderSender) -> None:
        self.leader = leader
        self.sender = sender
        self.up: deque[Outgoing] = deque()
        self.down: deque[list[tuple[DataFrame, bytes]]] = deque()


class Node:
    def __init__(self, world: World, node: NodeId, log: ModelLog, epoch: int, high_watermark: int) -> None:
        self.world, self.node, self.log, self.epoch = world, node, log, epoch
        self.effects = Effects()
        self.receiver = FollowerReceiver()
        self.stream: Stream | None = None
        self.truncation: Truncation | None = None
        self.replica = PartitionReplica(
            KEY,
            "t",
            node,
            log,
            SETTINGS,
            high_watermark=high_watermark,
            lag_max_ms=LAG_MS,
            eligible=lambda other, seen: world.controller.alive.get(other) == seen,
            is_full=lambda _: False,
            effects=self.effects,
        )

    def metadata(self, state: PartitionImage) -> None:
        change = self.replica.plan(state, self.world.now_ms)
        if change is Change.NONE:
            return
        self.world.disconnect(self.node)
        self.receiver.unfollow(self.replica)
        self.truncation = None
        for other in self.world.nodes.values():
            if other.stream is not None and other.stream.sender in self.world.senders_of(self.node):
                for session in list(other.stream.sender.sessions):
                    other.stream.sender.end(session, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        if change is Change.LEAD:
            for offset, value in self.world.acked.items():
                assert offset < len(self.log.entries), f"leader {self.node} lacks acked offset {offset}"
                assert self.log.entries[offset][1] == value
            committed = self.world.committed
            assert self.log.entries[: len(committed)] == committed, f"leader {self.node} lacks committed data"
            self.log.start_epoch(state.leader_epoch)
            self.replica.lead(state, self.world.now_ms)
        elif change is Change.FOLLOW:
            self.receiver.follow(self.replica)

    def flush(self) -> None:
        self.log.write()
        if self.replica.leadership is not None:
            self.replica.leadership.on_local_progress(self.world.now_ms)
        self.receiver.on_progress(self.replica)

    def truncate(self) -> None:
        cut = self.truncation
        if cut is None:
            return
        # Logs here begin at 0, so starting over means that nothing was in common.
        assert cut.offset == 0 or not cut.start_over
        self.log.truncate_to(cut.offset)
        assert not self.replica.on_truncated(), "cut below the high watermark"
        self.truncation = None
        self.receiver.reopen(self.replica, self.world.now_ms, pause=False)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.quiet = False
        self.acked: dict[int, int] = {}
        self.committed: list[tuple[int, int]] = []
        self.next_value = 0
        self.controller = Controller()
        self.nodes = {n: Node(self, n, ModelLog(), 1, 0) for n in IDS}
        self.down: dict[NodeId, tuple[ModelLog, int]] = {}

    # -- network ------------------------------------------------------------------

    def senders_of(self, leader: NodeId) -> list[LeaderSender]:
        streams = [n.stream for n in self.nodes.values() if n.stream is not None]
        return [s.sender for s in streams if s.leader == leader]

    def disconnect(self, follower: NodeId) -> None:
        node = self.nodes[follower]
        if node.stream is not None:
            leader = self.nodes.get(node.stream.leader)
            for session in list(node.stream.sender.sessions):
                node.stream.sender.close(session.number)
                if leader is not None and leader.replica.leadership is not None:
                    leader.replica.leadership.on_follower_closed(follower, self.now_ms)
            node.stream = None
        node.receiver.disconnected()

    def up(self, node: Node) -> None:
        """Follower to leader: make a message, and sometimes deliver what is on its way."""
        following = node.replica.following
        if following is None or following.leader not in self.nodes:
            return
        leader = self.nodes[following.leader]
        if node.stream is None:
            sender = LeaderSender(node.node, node.epoch, 4 * ENTRY_BYTES, leader.effects)
            node.stream = Stream(leader.node, sender)
        out = node.receiver.take(self.now_ms)
        if not out.empty:
            # Values as of now, not of delivery.
            acks = [(n, r, r.log.written_offset, r.log.flushed_offset) for n, r in out.acks]
            node.stream.up.append(Outgoing(out.opens, acks, out.closes))  # type: ignore[arg-type]
        while node.stream.up and self.rng.random() < 0.8:
            self._leader_receives(leader, node, node.stream.up.popleft())

    def _leader_receives(self, leader: Node, follower: Node, out: Outgoing) -> None:
        assert follower.stream is not None
        sender = follower.stream.sender
        for number in out.closes:
            sender.close(number)
        for number, _, request in out.opens:
            answer = leader.replica.on_open(follower.node, follower.epoch, request, self.now_ms)
            if answer.error is not None:
                sender.tell(DataFrame(number, error=(answer.error.code, "")))
            elif answer.diverging or answer.out_of_range:
                frame = DataFrame(number, diverging=answer.diverging, out_of_range=answer.out_of_range)
                sender.tell(frame)
            else:
                sender.open(number, leader.replica, request.fetch_offset)
        for number, _, end, flushed in out.acks:  # type: ignore[misc]
            session = sender.on_ack(number, end)
            if session is not None and leader.replica.leadership is not None:
                leader.replica.leadership.on_follower_ack(follower.node, end, flushed, self.now_ms)

    def send(self, node: Node) -> None:
        """Leader to follower."""
        stream = node.stream
        if stream is None:
            return

        def read(session: ReplicationSession, max_bytes: int) -> None:
            log = session.replica.log
            assert isinstance(log, ModelLog)
            stream.sender.on_read(session, *log.read(session.next_offset, max_bytes))

        stream.sender.reads(read)
        frames = stream.sender.take(3 * ENTRY_BYTES)
        if frames:
            stream.down.append([(f, b"".join(f.buffers)) for f in frames])
        while node.stream is stream and stream.down and self.rng.random() < 0.8:
            for frame, records in stream.down.popleft():
                self._follower_receives(node, frame, records)

    def _follower_receives(self, node: Node, frame: DataFrame, records: bytes) -> None:
        replica = node.receiver.replica_of(frame.session)
        if replica is None or replica.following is None:
            return
        following = replica.following
        if frame.diverging is not None:
            node.truncation = following.on_diverging(*frame.diverging)
            node.receiver.hold(replica)
        elif frame.out_of_range is not None:
            node.truncation = following.on_out_of_range(*frame.out_of_range)
            node.receiver.hold(replica)
        elif frame.error is not None:
            node.receiver.reopen(replica, self.now_ms, pause=True)
        else:
            if records:
                assert following.on_batches(frame.base_offset, records)
            node.receiver.on_data(replica)
            following.on_watermarks(frame.high_watermark, frame.log_start_offset)

    # -- events -------------------------------------------------------------------

    def append(self, node: Node) -> None:
        if self.quiet:
            return
        term = node.replica.leadership
        if term is None or term.under_min_isr:
            return
        value, self.next_value = self.next_value, self.next_value + 1
        pushed = node.log.append(node.replica.leader_epoch, value)
        term.on_append(pushed[0], self.now_ms)
        term.wait_all(pushed[1], self.now_ms + 1000, Waiter(self, pushed[0], value))
        for sender in self.senders_of(node.node):
            for session in list(sender.sessions):
                sender.on_append(session, *pushed)

    def crash(self, node: Node) -> None:
        for other in list(self.nodes):
            self.disconnect(other)
        if self.rng.random() < 0.7:
            node.log.crash()
        # A checkpoint of the high watermark may be old.
        self.down[node.node] = (node.log, self.rng.randint(0, node.replica.high_watermark))
        del self.nodes[node.node]
        self.controller.died(node.node)

    def restart(self, node_id: NodeId) -> None:
        log, high_watermark = self.down.pop(node_id)
        log.write()
        epoch = self.controller.came_back(node_id)
        self.nodes[node_id] = Node(self, node_id, log, epoch, min(high_watermark, log.log_end_offset))
        self.controller.feeds[node_id].clear()
        self.nodes[node_id].metadata(self.controller.state)

    def drain(self, node: Node) -> None:
        effects = node.effects
        proposals, effects.proposals = effects.proposals, {}
        for state in proposals:
            assert state is node.replica.state
            term = node.replica.leadership
            proposal = term.take_proposal() if term is not None else None
            if term is None or proposal is None:
                continue
            if self.rng.random() < 0.2:
                term.on_proposal_unknown(proposal)  # lost on the way there
                continue
            members = dict(zip(proposal.isr, proposal.node_epochs, strict=True))
            error = self.controller.decide(node.node, term.epoch, members, proposal.partition_epoch)
            if self.rng.random() < 0.2:
                term.on_proposal_unknown(proposal)  # answer lost
            elif error is ErrorCode.NONE:
                term.update(self.controller.state, self.now_ms)
            else:
                term.on_proposal_refused(proposal, error, self.now_ms)
        if node.effects.advanced:
            node.effects.advanced = {}
            self.check_committed(node)
        reopen, effects.reopen = effects.reopen, []
        for _, follower in reopen:
            for sender in self.senders_of(node.node):
                if sender.node == follower:
                    for session in list(sender.sessions):
                        sender.end(session, ErrorCode.REPLICA_NOT_AVAILABLE, "")
        answers, effects.answers = effects.answers, []
        for waiter, error in answers:
            waiter.acknowledge(error)
        effects.sending.clear()

    def check_committed(self, node: Node) -> None:
        prefix = node.log.entries[: node.replica.high_watermark]
        known = self.committed[: len(prefix)]
        assert prefix[: len(known)] == known, "two different histories were committed"
        if len(prefix) > len(self.committed):
            self.committed = prefix

    def step(self, *, faults: bool) -> None:
        rng = self.rng
        self.now_ms += rng.randint(0, 5)
        roll = rng.random()
        if (faults and roll < 0.004 and len(self.nodes) > 1) or (
            faults and roll < 0.008 and rng.random() < 0.3 and self.nodes
        ):
            self.crash(self.nodes[rng.choice(list(self.nodes))])
        elif roll < 0.03 and self.down:
            self.restart(rng.choice(list(self.down)))
        elif faults and roll < 0.035:
            self.controller.move_leader(rng)
        elif faults and roll < 0.05 and self.nodes:
            self.disconnect(rng.choice(list(self.nodes)))
        if not self.nodes:
            return
        node = self.nodes[rng.choice(list(self.nodes))]
        feed = self.controller.feeds[node.node]
        if feed and rng.random() < 0.5:
            node.metadata(feed.popleft())
        action = rng.choice((self.append, self.up, self.send, self.up, self.send, Node.flush, Node.truncate))
        action(node)
        if node.replica.leadership is not None and rng.random() < 0.2:
            node.replica.leadership.tick(self.now_ms)
        for each in list(self.nodes.values()):
            self.drain(each)
            each.replica.validate()


@pytest.mark.parametrize("block", range(8))
def test_nothing_acknowledged_is_lost(block: int) -> None:
    acked = 0
    for seed in range(block * 25, block * 25 + 25):
        world = World(seed)
        try:
            for _ in range(1500):
                world.step(faults=True)
            for step in range(2000):
                world.quiet = step > 500
                world.step(faults=False)
            assert world.controller.state.isr and set(world.controller.state.isr) == set(IDS), "not healed"
            leader = world.nodes[world.controller.state.leader]
            assert leader.replica.leadership is not None
            assert world.acked
            for offset, value in world.acked.items():
                assert leader.log.entries[offset][1] == value
            agreed = min(n.replica.high_watermark for n in world.nodes.values())
            assert len({tuple(n.log.entries[:agreed]) for n in world.nodes.values()}) == 1
        except AssertionError:
            print(f"seed {seed}")
            raise
        acked += len(world.acked)
    assert acked > 500
