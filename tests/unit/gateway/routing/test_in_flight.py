"""What becomes of requests in flight when leaders move and nodes are lost (rule "Maybe written, never 6")."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_gateway.routing.flight import InFlight, State
from penstock_gateway.routing.in_flight import GRACE_MS, RETRY_MS, InFlightTable
from penstock_kafka.producer_retries import EXPIRY_MS, PIPELINE_MAX, ProducerSequence
from penstock_kafka.wire.apis import OnLoss
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb

T = TopicId(b"t" * 16)
N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)
HOLD_MS, ANSWER_MS = 2000, 30_000


class World:
    """Metadata by hand: leaders of partitions 0.., epochs of nodes."""

    def __init__(self, *leaders: int) -> None:
        self.now_ms = 1000
        self.leaders = list(leaders)
        self.leader_epochs = [0] * len(leaders)
        self.node_epochs = {1: 1, 2: 1, 3: 1}
        self.fenced: set[int] = set()
        self.version = 1
        self.table: InFlightTable[str] = InFlightTable(self.image(), lambda: self.now_ms)

    def image(self) -> MetadataImage:
        records = [
            pb.MetadataRecord(
                node=pb.NodeRecord(
                    node_id=n, node_epoch=e, fenced=n in self.fenced, grpc=common.Endpoint(host="h", port=n)
                )
            )
            for n, e in self.node_epochs.items()
        ]
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=T, name="t")))
        records += [
            pb.MetadataRecord(
                partition=pb.PartitionRecord(
                    topic_id=T, partition=p, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3], isr=[1]
                )
            )
            for p, (leader, epoch) in enumerate(zip(self.leaders, self.leader_epochs, strict=True))
        ]
        return MetadataImage.from_records(records, self.version)

    def change(self) -> None:
        self.version += 1
        self.table.image_changed(self.image())

    def move(self, partition: int, leader: int) -> None:
        self.leaders[partition] = leader
        self.leader_epochs[partition] += 1

    def connect(self, *nodes: NodeId) -> None:
        for n in nodes:
            assert n in self.table.wanted
            self.table.wanted.discard(n)
            self.table.ready(n)

    def send(self, node: NodeId, most_bytes: int = 1 << 20) -> list[str]:
        return [str(f.payload) for f in self.table.take(node, most_bytes)]

    def answers(self) -> list[tuple[str, int]]:
        found = [(str(f.payload), int(code)) for f, code in self.table.answers]
        self.table.answers.clear()
        return found


def flight(
    name: str, *partitions: int, on_loss: OnLoss = OnLoss.MAYBE_WRITTEN, at: int | None = None
) -> InFlight[str]:
    """`at`: the base sequence of an idempotent producer's batches."""
    keys = [TopicPartition(T, p) for p in partitions]
    place = None if at is None else ProducerSequence(7, 0, at)

    def split(groups: Sequence[Sequence[int]]) -> list[InFlight[str]]:
        return [
            flight(
                f"{name}/{''.join(str(keys[i][1]) for i in g)}",
                *(keys[i][1] for i in g),
                on_loss=on_loss,
                at=at,
            )
            for g in groups
        ]

    return InFlight(on_loss, keys, name, 100, HOLD_MS, ANSWER_MS, split, lambda _: place)


def up(world: World, *flights: InFlight[str]) -> list[InFlight[str]]:
    for f in flights:
        world.table.submit(f)
    return list(flights)


def test_a_stream_is_opened_on_demand_and_order_kept() -> None:
    w = World(1)
    up(w, flight("a", 0), flight("b", 0))
    assert w.table.wanted == {1}
    assert w.send(N1) == []
    w.connect(N1)
    assert w.table.awake == {1}
    assert w.send(N1) == ["a", "b"]
    assert w.table.awake == set()


def test_a_table_is_idle_once_nothing_is_held_queued_or_sent() -> None:
    w = World(1)
    seen = [w.table.idle]
    (a,) = up(w, flight("a", 0))
    seen.append(w.table.idle)  # held: the stream is being opened
    w.connect(N1)
    seen.append(w.table.idle)  # queued
    w.send(N1)
    seen.append(w.table.idle)  # sent
    assert w.table.answered(a)
    seen.append(w.table.idle)
    assert seen == [True, False, False, False, True]


def test_take_is_bounded_by_bytes_but_gives_at_least_one() -> None:
    w = World(1)
    up(w, flight("a", 0), flight("b", 0), flight("c", 0))
    w.connect(N1)
    assert w.send(N1, 1) == ["a"]
    assert w.table.awake == {1}
    assert w.send(N1, 250) == ["b", "c"]


def test_a_request_of_several_leaders_is_split() -> None:
    w = World(1, 2, 1)
    up(w, flight("a", 0, 1, 2))
    w.connect(N1, N2)
    assert w.send(N1) == ["a/02"]
    assert w.send(N2) == ["a/1"]


def test_a_lost_node_answers_7_for_sent_6_for_those_behind_and_routes_the_rest_again() -> None:
    w = World(1, 1)
    sent, behind, other = up(w, flight("a", 0), flight("b", 0), flight("c", 1))
    w.connect(N1)
    assert w.send(N1, 1) == ["a"]
    w.table.broken(N1)
    assert w.answers() == [("a", ErrorCode.REQUEST_TIMED_OUT), ("b", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert (sent.state, behind.state, other.state) == (State.DONE, State.DONE, State.HELD)
    assert not w.table.answered(sent)
    w.move(1, 2)
    w.change()
    w.connect(N2)
    assert w.send(N2) == ["c"]


def test_a_fenced_node_is_lost_even_when_its_stream_is_not() -> None:
    w = World(1)
    up(w, flight("a", 0), flight("f", 0, on_loss=OnLoss.ASK_CLIENT))
    w.connect(N1)
    w.send(N1)
    w.fenced.add(1)
    w.move(0, 2)
    w.change()
    assert w.table.dropped == {1}
    assert sorted(w.answers()) == [("a", 7), ("f", 6)]
    up(w, flight("b", 0))
    w.connect(N2)
    assert w.send(N2) == ["b"]


def test_a_node_that_came_back_with_another_epoch_is_another_node() -> None:
    w = World(1)
    up(w, flight("a", 0))
    w.connect(N1)
    w.send(N1)
    w.node_epochs[1] = 9
    w.change()
    assert w.table.dropped == {1}
    assert w.answers() == [("a", 7)]


def test_a_silent_old_leader_has_a_grace_time_and_later_ones_wait_for_it() -> None:
    w = World(1)
    old, new = up(w, flight("a", 0))[0], flight("b", 0)
    w.connect(N1)
    w.send(N1)
    w.move(0, 2)
    w.change()
    up(w, new)
    w.table.ready(N2)
    assert w.send(N2) == []
    assert w.table.answered(old)
    w.connect(N2)
    assert w.send(N2) == ["b"]
    # And when it stays silent: 7, and 6 for what waited behind.
    w.move(0, 1)
    w.change()
    up(w, flight("c", 0))
    w.now_ms += GRACE_MS
    w.table.tick()
    assert w.answers() == [("b", 7), ("c", 6)]


def test_refused_before_the_append_goes_to_the_new_leader_in_order() -> None:
    w = World(1)
    a, b = up(w, flight("a", 0), flight("b", 0))
    w.connect(N1)
    w.send(N1)
    w.move(0, 2)
    assert w.table.refused(a, [0])
    assert w.send(N1) == []
    assert w.table.refused(b, [0])
    w.change()
    w.connect(N2)
    assert w.send(N2) == ["a/0", "b/0"]
    assert w.answers() == []


def test_refused_again_and_again_ends_with_6() -> None:
    w = World(1)
    up(w, flight("a", 0))
    w.connect(N1)
    rounds = 0
    while not (answers := w.answers()):
        for f in w.table.take(N1, 1 << 20):
            assert w.table.refused(f, [0])
            rounds += 1
        w.now_ms += 10
        w.table.tick()
        assert rounds < 100
    assert answers[0][1] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert HOLD_MS / RETRY_MS / 2 < rounds <= HOLD_MS / RETRY_MS + 1


def test_one_that_cannot_say_yet_is_asked_the_same_again() -> None:
    w = World(1, 1)
    up(w, flight("l", 0, 1, on_loss=OnLoss.ASK_CLIENT))
    w.connect(N1)
    rounds = 0
    while not (answers := w.answers()):
        for f in w.table.take(N1, 1 << 20):
            assert len(f.partitions) == 2, "in one piece"
            assert w.table.postponed(f)
            assert not w.table.postponed(f)
            rounds += 1
        w.now_ms += 10
        w.table.tick()
        assert rounds < 100
    assert answers == [("l", ErrorCode.NOT_LEADER_OR_FOLLOWER)] * len(answers)
    assert HOLD_MS / RETRY_MS / 2 < rounds <= HOLD_MS / RETRY_MS + 1


def test_no_leader_holds_produce_and_fails_fetch() -> None:
    w = World(-1)
    up(w, flight("a", 0), flight("f", 0, on_loss=OnLoss.ASK_CLIENT))
    assert w.answers() == [("f", 6)]
    w.now_ms += HOLD_MS - 1
    w.table.tick()
    assert w.answers() == []
    w.now_ms += 1
    up(w, flight("b", 0))
    w.table.tick()
    assert w.answers() == [("a", 6), ("b", 6)]
    assert w.table.held_count == 0


def test_queries_are_asked_again() -> None:
    w = World(1)
    up(w, flight("q", 0, on_loss=OnLoss.ASK_AGAIN))
    w.connect(N1)
    w.send(N1)
    w.table.broken(N1)
    assert w.answers() == []
    w.move(0, 3)
    w.change()
    w.connect(N3)
    assert w.send(N3) == ["q"]


def test_an_unreachable_node_fails_held_fetches_when_its_leadership_moves() -> None:
    w = World(1)
    up(w, flight("f", 0, on_loss=OnLoss.ASK_CLIENT))
    assert w.answers() == []
    w.move(0, 2)
    w.change()
    assert w.answers() == [("f", 6)]


def test_no_answer_at_all_ends_too() -> None:
    w = World(1)
    up(w, flight("a", 0), flight("f", 0, on_loss=OnLoss.ASK_CLIENT))
    w.connect(N1)
    w.send(N1)
    w.now_ms += ANSWER_MS
    w.table.tick()
    assert w.answers() == [("a", 7), ("f", 6)]
    assert w.table.sent_count == 0


class Storm:
    """Random events; notes what became of each partition of each request."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = World(*(rng.choice((1, 2, 3)) for _ in range(4)))
        self.submitted = 0
        self.settled: dict[tuple[str, int], str] = {}
        self.out: list[InFlight[str]] = []
        self.newest_sent = [0, 0, 0, 0]

    def settle(self, f: InFlight[str], what: str, indices: Sequence[int] | None = None) -> None:
        base = str(f.payload).split("/")[0]
        for i in range(len(f.partitions)) if indices is None else indices:
            key = (base, f.partitions[i].partition)
            assert key not in self.settled, (f.payload, what)
            self.settled[key] = what

    def drain(self) -> None:
        table = self.world.table
        for f, code in table.answers:
            self.settle(f, code.name)
        table.answers.clear()
        table.dropped.clear()
        for n in list(table.wanted):
            if self.rng.random() < 0.7:
                table.wanted.discard(n)
                table.ready(n)

    def submit(self) -> None:
        on_loss = self.rng.choice(
            (OnLoss.MAYBE_WRITTEN, OnLoss.MAYBE_WRITTEN, OnLoss.ASK_CLIENT, OnLoss.ASK_AGAIN)
        )
        parts = self.rng.sample(range(4), self.rng.randint(1, 4))
        self.world.table.submit(flight(f"{on_loss.name}{self.submitted}", *parts, on_loss=on_loss))
        self.submitted += len(parts)

    def take(self) -> None:
        table = self.world.table
        for f in table.take(NodeId(self.rng.choice((1, 2, 3))), self.rng.randint(1, 1000)):
            self.out.append(f)
            if f.on_loss is not OnLoss.MAYBE_WRITTEN:
                continue
            for key in f.partitions:
                assert table._lines.node_of(key) == f.node_id, "one partition at two nodes"
                if f.refused_by is None:
                    # First sends keep the order of arrival; a refused one comes again later.
                    assert f.seq > self.newest_sent[key.partition]
                    self.newest_sent[key.partition] = f.seq

    def answer(self) -> None:
        f = self.out.pop(self.rng.randrange(len(self.out)))
        table = self.world.table
        if self.rng.random() < 0.7:
            if table.answered(f):
                self.settle(f, "ok")
            return
        count = len(f.partitions)
        refused = sorted(self.rng.sample(range(count), self.rng.randint(1, count)))
        if table.refused(f, refused):
            self.settle(f, "ok", [i for i in range(count) if i not in refused])

    def upheave(self) -> None:
        world, rng = self.world, self.rng
        world.move(rng.randrange(4), rng.choice((-1, 1, 2, 3)))
        if rng.random() < 0.2:
            world.node_epochs[rng.choice((1, 2, 3))] += 1
        world.change()

    def step(self) -> None:
        self.world.now_ms += self.rng.randint(0, 60)
        events = [self.submit] * 8 + [self.take] * 4 + [self.upheave] * 2 + [self.world.table.tick]
        events += [lambda: self.world.table.broken(NodeId(self.rng.choice((1, 2, 3))))]
        events += [self.answer] * 4 if self.out else []
        self.rng.choice(events)()
        self.drain()

    def calm(self) -> None:
        """Nobody answers any more: everything must end all the same."""
        table = self.world.table
        for _ in range(4):
            self.world.now_ms += 10 * ANSWER_MS
            table.tick()
            self.drain()
            for n in (1, 2, 3):
                table.take(NodeId(n), 1 << 30)
        self.world.now_ms += 10 * ANSWER_MS
        table.tick()
        self.drain()


@pytest.mark.parametrize("round_", range(40))
def test_whatever_happens_each_is_answered_once_and_in_order(round_: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    storm = Storm(random.Random(seed))
    for _ in range(400):
        storm.step()
    storm.calm()
    assert len(storm.settled) == storm.submitted
    table = storm.world.table
    assert table.held_count == table.sent_count == table.unsent_bytes == 0
    assert not table._lines


# -- what an idempotent producer had in flight behind a failure ---------------------------------


def lost_leader() -> World:
    """A batch with sequence 10 was answered 7, and the new leader is connected."""
    w = World(1, 1)
    up(w, flight("r1", 0, at=10))
    w.connect(N1)
    assert w.send(N1) == ["r1"]
    w.move(0, 2)
    w.table.broken(N1)
    w.change()
    assert w.answers() == [("r1", ErrorCode.REQUEST_TIMED_OUT)]
    up(w, flight("q", 0, on_loss=OnLoss.ASK_AGAIN))
    w.connect(N2)
    assert w.send(N2) == ["q"]
    return w


def test_a_batch_that_comes_after_a_failure_waits_for_the_failed_one() -> None:
    """It would be out of order at the new leader, and librdkafka bumps its epoch at that,
    so that what is maybe written to *other* partitions is written twice."""
    w = lost_leader()
    up(w, flight("r2", 0, at=13))
    assert w.answers() == [("r2", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    up(w, flight("r1 again", 0, at=10), flight("r2 again", 0, at=13))
    assert w.send(N2) == ["r1 again", "r2 again"]
    assert w.answers() == []


def test_only_the_failed_partition_is_fenced() -> None:
    w = lost_leader()
    w.move(1, 2)
    w.change()
    up(w, flight("r2", 0, 1, at=13))
    assert w.answers() == [("r2/0", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert w.send(N2) == ["r2/1"]


def test_other_producers_and_plain_batches_are_not_fenced() -> None:
    w = lost_leader()
    up(w, flight("plain", 0))
    other = flight("other epoch", 0)
    other.sequence = lambda _: ProducerSequence(7, 1, 0)
    up(w, other)
    assert w.send(N2) == ["plain", "other epoch"]


def test_a_fence_turns_away_no_more_than_could_be_in_flight() -> None:
    """The retry may have taken another connection: then this one must open by itself."""
    w = lost_leader()
    late = [flight(f"late{i}", 0, at=20 + i) for i in range(PIPELINE_MAX + 1)]
    up(w, *late)
    assert len(w.answers()) == PIPELINE_MAX
    assert w.send(N2) == [f"late{PIPELINE_MAX}"]


def test_a_fence_opens_at_the_first_of_those_that_it_turned_away() -> None:
    """It comes again, but nothing before it: the failed one took another connection, or counts as written
    since a later one was acknowledged. A fence that opened behind it would let the next ones overtake
    it (seed 2240 of the simulator)."""
    w = lost_leader()
    for at in (13, 15, 16):
        up(w, flight("late", 0, at=at))
    assert w.answers() == [("late", ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 3
    up(w, *[flight(f"again{at}", 0, at=at) for at in (13, 15, 16, 18)])
    assert w.answers() == []
    assert w.send(N2) == ["again13", "again15", "again16", "again18"]


def test_a_fence_expires() -> None:
    w = lost_leader()
    w.now_ms += EXPIRY_MS
    up(w, flight("late", 0, at=13))
    assert w.send(N2) == ["late"]


def test_sequences_wrap() -> None:
    w = World(1)
    up(w, flight("r1", 0, at=0x7FFFFFFE))
    w.connect(N1)
    w.send(N1)
    w.table.broken(N1)
    assert len(w.answers()) == 1
    up(w, flight("r2", 0, at=1))
    assert w.answers() == [("r2", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_nothing_overtakes_what_a_deposed_leader_answered_7() -> None:
    """The old leader lives: it answers 7 to what it had appended and refuses what came after."""
    w = World(1)
    r1, r2 = up(w, flight("r1", 0, at=10), flight("r2", 0, at=13))
    w.connect(N1)
    assert w.send(N1) == ["r1", "r2"]
    w.move(0, 2)
    w.change()
    assert w.table.refused(r2, [0])  # its answer overtakes that of r1, which waited for acks
    assert w.table.refused(r1, [], [0])
    assert w.answers() == [("r2/0", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    up(w, flight("r3", 0, at=15), flight("r1 again", 0, at=10))
    assert w.answers() == [("r3", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_nothing_is_routed_again_past_what_was_answered_7() -> None:
    w = World(1)
    r1, r2 = up(w, flight("r1", 0, at=10), flight("r2", 0, at=13))
    w.connect(N1)
    assert w.send(N1) == ["r1", "r2"]
    assert w.table.refused(r1, [], [0])
    assert w.table.refused(r2, [0])
    assert w.answers() == [("r2/0", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_what_was_queued_behind_a_failed_batch_is_not_sent_to_the_next_leader() -> None:
    w = World(1, 1)
    r1, _, _ = up(w, flight("r1", 0, at=10), flight("r2", 0, 1, at=13), flight("plain", 0))
    w.connect(N1)
    assert w.send(N1, 1) == ["r1"]
    assert w.table.refused(r1, [], [0])
    w.move(0, 2)
    w.change()
    w.connect(N2)
    assert w.answers() == [("r2/0", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert (w.send(N1), w.send(N2)) == (["r2/1"], ["plain"])
