"""Classic groups under random members, time and failovers, from a seed; invariants all the way.

* Members that hold an assignment of the same generation never hold the same partition.
* A commit is taken only in the generation that the group is in.
* After any failover, what is committed is the last acknowledged offset or a later one that was sent.
* What a new leader reads is what the old one had, as far as it was safe.
* After every event the shard's own invariants hold.
* Once faults end, every live member is in, and every partition has one owner.
"""

from __future__ import annotations

import random

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.classic.group import ClassicGroup, GroupState, JoinResult, SyncResult
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import Rig, fresh_seeds, subscription

E = ErrorCode
PARTITIONS = 6
RETRY = (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)


class Client:
    """A consumer that behaves, until it dies."""

    def __init__(self, world: World, number: int, *, static: bool) -> None:
        self.world = world
        self.instance_id = f"static-{number}" if static else None
        self.member_id = ""
        self.generation = -1
        self.state = "out"
        self.owned: set[int] = set()
        self.joins: list[JoinResult] = []
        self.syncs: list[SyncResult] = []
        self.dead = False

    def step(self) -> None:
        if self.dead:
            return
        rig = self.world.rig
        if self.state == "out":
            self.owned = set()
            self.joins = rig.join(
                "g",
                self.member_id,
                instance_id=self.instance_id,
                protocols=(("range", subscription("t")),),
                rebalance_timeout_ms=15_000,
            )
            self.state = "joining"
        elif self.state == "joining" and self.joins:
            self._joined(self.joins[0])
        elif self.state == "syncing" and self.syncs:
            self._synced(self.syncs[0])
        elif self.state == "in":
            self._work()

    def _joined(self, result: JoinResult) -> None:
        if result.error:
            self._failed(result.error, result.member_id)
            return
        self.member_id, self.generation = result.member_id, result.generation
        assignments = []
        if result.members:
            ids = [m[0] for m in result.members]
            assignments = [
                (each, bytes(p for p in range(PARTITIONS) if p % len(ids) == i)) for i, each in enumerate(ids)
            ]
        self.syncs = self.world.rig.sync(
            "g", self.member_id, self.generation, assignments, instance_id=self.instance_id
        )
        self.state = "syncing"

    def _synced(self, result: SyncResult) -> None:
        if result.error:
            self._failed(result.error, self.member_id)
            return
        self.state = "in"
        self.owned = set(result.assignment)
        self.world.check_owners()

    def _failed(self, error: ErrorCode, member_id: str) -> None:
        self.state = "out"
        self.owned = set()
        if error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID):
            self.member_id = ""
        elif error is E.MEMBER_ID_REQUIRED:
            self.member_id = member_id
        else:
            assert error in (*RETRY, E.REBALANCE_IN_PROGRESS), error

    def _work(self) -> None:
        world = self.world
        if world.rng.random() < 0.5 and self.owned:
            world.commit(self, world.rng.choice(sorted(self.owned)))
            return
        error = world.rig.shard.heartbeat("g", self.member_id, self.instance_id, self.generation)
        if error and error not in RETRY:
            self._failed(error, self.member_id)


class World:
    """One group, its clients, its coordinator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(GroupSettings(initial_rebalance_delay_ms=self.rng.choice((0, 1_000))), hold=True)
        self.clients: list[Client] = []
        self.sent: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        self.acked: dict[int, int] = {}
        self.next_offset = 0
        self.pending: list[tuple[int, int, list[list[ErrorCode]]]] = []

    def live(self) -> list[Client]:
        return [c for c in self.clients if not c.dead]

    def add(self) -> None:
        number = self.rng.randrange(3)
        static = self.rng.random() < 0.3
        if static and any(c.instance_id == f"static-{number}" and not c.dead for c in self.clients):
            static = False
        self.clients.append(Client(self, number, static=static))

    def check_owners(self) -> None:
        by_generation: dict[int, list[int]] = {}
        for client in self.live():
            if client.state == "in":
                by_generation.setdefault(client.generation, []).extend(client.owned)
        for generation, owned in by_generation.items():
            assert len(owned) == len(set(owned)), (generation, owned)

    def commit(self, client: Client, partition: int) -> None:
        self.next_offset += 1
        offset = self.next_offset
        group = self.rig.shard.groups.get("g")
        current = group.generation if isinstance(group, ClassicGroup) else None
        answers = self.rig.commit(
            "g",
            client.member_id,
            client.generation,
            {("t", partition): offset},
            instance_id=client.instance_id,
        )
        waits = not answers or answers[0] == [E.NONE]
        if waits:
            assert current == client.generation, "a commit of another generation was taken"
            self.sent[partition].append(offset)
            self.pending.append((partition, offset, answers))
        elif answers[0][0] not in (*RETRY, E.REBALANCE_IN_PROGRESS):
            client._failed(answers[0][0], client.member_id)

    def note_acks(self) -> None:
        left = []
        for partition, offset, answers in self.pending:
            if not answers:
                left.append((partition, offset, answers))
            elif answers[0] == [E.NONE]:
                self.acked[partition] = max(self.acked.get(partition, -1), offset)
        self.pending = left

    def check_offsets(self) -> None:
        self.note_acks()
        found = {key[1]: offset for key, offset in self.rig.offsets("g").items()}
        for partition, offset in self.acked.items():
            assert found[partition] >= offset, (partition, found, offset)
        for partition, offset in found.items():
            assert offset in self.sent[partition]

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        dice = rng.random()
        if dice < 0.55 and self.clients:
            rng.choice(self.clients).step()
        elif dice < 0.75:
            rig.log.advance(rng.randint(rig.log.committed, len(rig.log.records)))
        elif dice < 0.93:
            rig.pass_ms(rng.choice((10, 200, 1_000, 4_000)), 500)
        elif dice < 0.955 and len(self.live()) < 5:
            self.add()
        elif dice < 0.97 and self.live():
            client = rng.choice(self.live())
            if rng.random() < 0.5 and client.member_id and client.instance_id is None:
                rig.shard.leave("g", [(client.member_id, None)])
            client.dead = True
        elif dice < 0.98:
            self.fail_over()
        rig.shard.validate()
        self.check_offsets()

    def fail_over(self) -> None:
        log = self.rig.log
        self.rig.fail_over(self.rng.randint(log.committed, len(log.records)))

    def calm_down(self) -> None:
        """No more faults: the group forms and stays."""
        self.rig.log.hold = False
        for _ in range(400):
            for client in self.live():
                client.step()
            self.rig.settle()
            self.rig.pass_ms(500, 500)
            self.note_acks()
        group = self.rig.shard.groups.get("g")
        live = self.live()
        if live:
            assert isinstance(group, ClassicGroup)
            assert group.state is GroupState.STABLE
            assert set(group.members) == {c.member_id for c in live}
            owned = [p for c in live for p in c.owned]
            assert sorted(owned) == list(range(PARTITIONS)), [(c.state, c.owned) for c in live]
        self.check_offsets()
        self.check_replay()

    def check_replay(self) -> None:
        before = self.rig.shard
        offsets = {k: dict(v) for k, v in before.offsets.items()}
        group = before.groups.get("g")
        self.rig.fail_over()
        assert self.rig.shard.offsets == offsets
        after = self.rig.shard.groups.get("g")
        if isinstance(group, ClassicGroup) and group.members:
            assert isinstance(after, ClassicGroup)
            assert after.generation == group.generation
            assert {m.member_id: m.assignment for m in after.members.values()} == {
                m.member_id: m.assignment for m in group.members.values()
            }


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_of_a_group(seed: int) -> None:
    live(seed)


def test_lives_that_nobody_has_seen_yet() -> None:
    for seed in fresh_seeds(5):
        live(seed)


def live(seed: int) -> None:
    print(f"seed {seed}")
    world = World(seed)
    for _ in range(2):
        world.add()
    for _ in range(1_500):
        world.step()
    world.calm_down()
