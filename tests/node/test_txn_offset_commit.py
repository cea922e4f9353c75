"""TxnOffsetCommit, and OffsetFetch that requires stable offsets, in every version.

The group is a real shard and the leader's side a real admission; the transaction's coordinator answers when the test
says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId, TopicPartition
from penstock_core.security.acl import ResourceType
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import INT16, INT32, INT64, Reader, put_count, put_string
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.groups import GroupHandler
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.transactional_commits import TransactionalCommits, verification_error
from penstock_storage_node.log import ProducerEntry
from penstock_storage_node.transactions.admission import Admission, MarkerOrder
from penstock_storage_node.transactions.verifier import Producer
from support.denials import Denying
from unit.storage_node.groups.group_rig import FakeLog, Rig

E = ErrorCode
KEY = TopicPartition(TopicId(b"o" * 16), 4)
VERSIONS = range(6)
PRODUCER = (7, 0)
"""Id and epoch."""


class Producers:
    """What the log remembers of producers."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log

    def producer(self, producer_id: int) -> ProducerEntry | None:
        if producer_id not in self.log.epochs:
            return None
        entry = ProducerEntry(self.log.epochs[producer_id])
        begun_at = self.log.begun_at(producer_id, len(self.log.records))
        entry.transaction_first_offset = -1 if begun_at is None else begun_at
        entry.batches = [(-1, -1, 0, 0)]
        return entry

    def is_duplicate(self, info: Any) -> bool:
        raise AssertionError("a commit of offsets is never a duplicate")


class Peer:
    """Calls the handler as a connection does, and is host, link and coordinator of transactions."""

    def __init__(self, authorizer: Any = None, *, verifies: bool = True) -> None:
        self.rig = Rig()
        self.rig.topics.counts = {"t": 3, "secret": 1}
        self.topics, self.settings = self.rig.topics, self.rig.settings
        self.place = SimpleNamespace(
            shard=self.rig.shard, partition=SimpleNamespace(key=KEY, name="__consumer_offsets-4")
        )
        self.is_coordinator = True
        self.asked: list[tuple[Producer, bool, Any]] = []
        """(producer, whether it is to be added, how to answer)."""
        self.admission = Admission("__consumer_offsets-4", Producers(self.rig.log))
        self.leading = SimpleNamespace(on_end=[], admission=lambda _: self.admission)
        self.additions = SimpleNamespace(ask_vouched=self._ask)
        self.stream = ClientStream()
        rights = Rights(authorizer or AllowAll())
        groups: Any = GroupHandler(self, rights)  # type: ignore[arg-type]
        self.groups = groups
        self.handler = TransactionalCommits(
            groups,
            self,  # type: ignore[arg-type]
            rights,
            self,  # type: ignore[arg-type]
            self.rig.clock,
            lambda: verifies,
        )

    def hosted(self, group_id: str) -> Any:
        if not self.is_coordinator:
            raise PenstockError(E.NOT_COORDINATOR, f"{group_id} is elsewhere")
        if group_id == "loading":
            raise PenstockError(E.COORDINATOR_LOAD_IN_PROGRESS, "not yet")
        return self.place

    def find(self, group_id: str) -> Any:
        return self.hosted(group_id).shard

    def _ask(self, producer: Producer, partition: Any, *, adds: bool, done: Any) -> None:
        assert tuple(partition) == ("__consumer_offsets", 4)
        self.asked.append((producer, adds, done))

    def coordinator_says(self, code: ErrorCode) -> None:
        """To the oldest question."""
        _, _, done = self.asked.pop(0)
        done(code, 3)
        self.rig.settle()

    def mark(self, *, commits: bool) -> None:
        """The transaction has ended."""
        self.rig.mark(PRODUCER[0], commits=commits)
        self.admission.marker_appended(MarkerOrder(*PRODUCER, commits, 3, 0, 0))

    def begin(
        self,
        version: int,
        offset: int = 5,
        *,
        topics: dict[str, tuple[int, ...]] | None = None,
        group: str = "g",
        member: tuple[int, str] = (-1, ""),
        producer: tuple[int, int] = PRODUCER,
        transactional_id: str = "x",
    ) -> Any:
        """A request; what it is answered, or will be."""
        flexible = version >= 3
        end = b"\0" if flexible else b""
        out = [put_string(transactional_id, flexible), put_string(group, flexible)]
        out += [INT64.pack(producer[0]), INT16.pack(producer[1])]
        if version >= 3:
            out += [INT32.pack(member[0]), put_string(member[1], True), put_string(None, True)]
        wanted = {"t": (0,)} if topics is None else topics
        out.append(put_count(len(wanted), flexible))
        for name, partitions in wanted.items():
            out += [put_string(name, flexible), put_count(len(partitions), flexible)]
            for partition in partitions:
                epoch = INT32.pack(-1) if version >= 2 else b""
                out.append(INT32.pack(partition) + INT64.pack(offset) + epoch)
                out.append(put_string(None, flexible) + end)
            out.append(end)
        out.append(end)
        frame = request_header(ApiKey.TXN_OFFSET_COMMIT, version, 9, "client") + b"".join(out)
        answer = self.handler.handle(self.caller(), parse_request_header(frame), frame)
        self.rig.settle()
        return answer

    def caller(self) -> RequestContext:
        who = Identity(ANONYMOUS, "1.2.3.4")
        return RequestContext(who, "client", "1.2.3.4:5", stream=self.stream)

    async def fetch(self, version: int, *, stable: bool = True) -> Any:
        """An OffsetFetch of three partitions."""
        key = ApiKey.OFFSET_FETCH
        values: dict[str, Any] = {"require_stable": stable}
        kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
        name = {"topic_id": self.rig.topics.id_of("t")} if version >= 10 else {"name": "t"}
        topic_type = codec.entity_type(key, version, kind, request=True)
        topics = (codec.build(topic_type, **name, partition_indexes=(0, 1, 2)),)
        if version >= 8:
            group_type = codec.entity_type(key, version, "OffsetFetchRequestGroup", request=True)
            values["groups"] = (
                codec.build(group_type, group_id="g", topics=topics, member_id=None, member_epoch=-1),
            )
        else:
            values |= {"group_id": "g", "topics": topics}
        body = codec.encode_body(codec.build(codec.request_type(key, version), **values))
        frame = request_header(key, version, 9, "client") + body
        answer = self.groups.handle(self.caller(), parse_request_header(frame), frame)
        response = await answer if isinstance(answer, Awaitable) else answer
        _, found = codec.decode_response(key, version, b"".join(response))
        partitions = (found.groups[0] if version >= 8 else found).topics[0].partitions
        return {p.partition_index: (p.committed_offset, E(int(p.error_code))) for p in partitions}


async def codes(version: int, answer: Any) -> list[ErrorCode]:
    """What a response says of each partition."""
    response = await answer if isinstance(answer, Awaitable) else answer
    flexible = version >= 3
    reader = Reader(b"".join(response), 9 if flexible else 8, flexible)
    found = []
    for _ in range(reader.array(1)):
        reader.string()
        for _ in range(reader.array(1)):
            reader.int32()
            found.append(E(reader.int16()))
            reader.skip_tags()
        reader.skip_tags()
    reader.skip_tags()
    return found


def test_offsets_count_once_the_transaction_is_committed_in_every_version() -> None:
    async def main() -> None:
        for version in VERSIONS:
            peer = Peer()
            first = peer.begin(version)
            assert peer.rig.log.records == []  # the transaction's coordinator is asked first
            ((producer, adds, _),) = peer.asked
            assert (producer, adds) == (Producer("x", *PRODUCER), version >= 5)
            peer.coordinator_says(E.NONE)
            assert await codes(version, first) == [E.NONE]
            # While the transaction is open nobody is asked again.
            again = peer.begin(version, 6, topics={"t": (0, 2)})
            assert await codes(version, again) == [E.NONE, E.NONE]
            assert (peer.asked, peer.rig.offsets("g")) == ([], {})
            peer.mark(commits=True)
            assert peer.rig.offsets("g") == {("t", 0): 6, ("t", 2): 6}
            # The next one is another question, though the log has a batch of that very epoch.
            peer.begin(version)
            assert len(peer.asked) == 1

    asyncio.run(main())


def test_what_the_coordinator_of_the_transaction_says_is_told_in_the_codes_of_the_version() -> None:
    async def main() -> None:
        for version in VERSIONS:
            loading = E.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else E.COORDINATOR_NOT_AVAILABLE
            for said, told in (
                (E.COORDINATOR_LOAD_IN_PROGRESS, loading),
                (E.COORDINATOR_NOT_AVAILABLE, loading),
                (E.NOT_COORDINATOR, loading),
                (E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS if version >= 5 else loading),
                (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
                (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
                (E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
                (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
                (E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE if version >= 4 else E.INVALID_TXN_STATE),
            ):
                peer = Peer()
                answer = peer.begin(version, topics={"t": (0, 1)})
                peer.coordinator_says(said)
                assert await codes(version, answer) == [told, told], (version, said)
                assert (peer.rig.log.records, peer.handler.waiting_count) == ([], 0)

    asyncio.run(main())
    assert verification_error(E.NONE, 5) is E.NONE


def test_the_group_is_asked_in_the_step_of_the_append() -> None:
    async def main() -> None:
        peer = Peer()
        (a,) = peer.rig.stable("g", 1)
        answer = peer.begin(3, member=(1, a))
        peer.rig.enter("g")
        peer.rig.join("g", a)  # another generation, while the coordinator of the transaction is asked
        peer.coordinator_says(E.NONE)
        assert await codes(3, answer) == [E.ILLEGAL_GENERATION]
        answer = peer.begin(3, member=(2, a))
        peer.coordinator_says(E.NONE)
        assert await codes(3, answer) == [E.NONE]

    asyncio.run(main())


def test_a_verification_opens_no_later_transaction() -> None:
    async def main() -> None:
        peer = Peer()
        answer = peer.begin(3)
        # It took so long that the transaction ended meanwhile.
        peer.mark(commits=False)
        peer.coordinator_says(E.NONE)
        assert await codes(3, answer) == [E.INVALID_TXN_STATE]
        peer.rig.log.epochs[7] = 4
        assert await codes(3, peer.begin(3)) == [E.INVALID_PRODUCER_EPOCH]
        assert peer.asked == []

    asyncio.run(main())


def test_commits_of_a_producer_keep_their_order() -> None:
    async def main() -> None:
        peer = Peer()
        first, second = peer.begin(3, 5), peer.begin(3, 6)
        other = peer.begin(3, 7, producer=(8, 0))  # waits for nobody else's coordinator
        assert [producer.producer_id for producer, _, _ in peer.asked] == [7, 8]
        _, _, done = peer.asked.pop(1)
        done(E.NONE, 3)
        peer.rig.settle()
        assert await codes(3, other) == [E.NONE]
        peer.coordinator_says(E.NONE)
        assert (await codes(3, first), await codes(3, second)) == ([E.NONE], [E.NONE])
        assert peer.asked == []
        peer.mark(commits=True)
        assert peer.rig.offsets("g") == {("t", 0): 6}
        # One that is refused lets the next one ask.
        first, second = peer.begin(3, 8), peer.begin(3, 9)
        peer.coordinator_says(E.CONCURRENT_TRANSACTIONS)
        assert await codes(3, first) == [E.COORDINATOR_LOAD_IN_PROGRESS]
        peer.coordinator_says(E.NONE)
        assert await codes(3, second) == [E.NONE]
        assert peer.handler.waiting_count == 0

    asyncio.run(main())


def test_nothing_is_begun_for_a_client_that_is_gone() -> None:
    async def main() -> None:
        peer = Peer()
        peer.begin(3, 5)
        late = peer.begin(3, 6)
        peer.stream.end()
        peer.coordinator_says(E.NONE)
        assert (peer.rig.log.records, peer.handler.waiting_count) == ([], 0)
        assert not late.done()
        gone = peer.begin(3, 7)
        assert await codes(3, gone) == [E.COORDINATOR_NOT_AVAILABLE]
        assert peer.asked == []

    asyncio.run(main())


def test_a_late_commit_of_a_client_that_went_puts_no_old_offsets_back() -> None:
    async def main() -> None:
        peer = Peer()
        first = peer.stream
        peer.begin(3, 5)
        peer.coordinator_says(E.NONE)
        asks: list[int] = []
        peer.stream = ClientStream(ask=asks.append)
        newer = peer.begin(3, 6)
        assert (asks, peer.asked, peer.handler.waiting_count) == ([1], [], 0)
        peer.stream.told(1)
        peer.rig.settle()
        assert await codes(3, newer) == [E.NONE]
        records = len(peer.rig.log.records)
        # By a gateway that says nothing more of its client; and one that adds its partition is of its own transaction.
        first._ask = asks.append
        peer.stream = first
        late = peer.begin(3, 4)
        assert (asks, len(peer.rig.log.records), late.done()) == ([1, 1], records, False)
        first.end()
        assert peer.handler.waiting_count == 0
        late.cancel()

    asyncio.run(main())


def test_a_coordinator_that_is_one_no_more_says_so() -> None:
    async def main() -> None:
        for version in VERSIONS:
            peer = Peer()
            waits, behind = peer.begin(version), peer.begin(version)
            for told in peer.leading.on_end:
                told(peer.place.partition)
            assert await codes(version, waits) == await codes(version, behind) == [E.NOT_COORDINATOR]
            peer.coordinator_says(E.NONE)  # too late
            assert peer.rig.log.records == []
            peer.is_coordinator = False
            assert await codes(version, peer.begin(version)) == [E.NOT_COORDINATOR]
            peer.is_coordinator = True
            loading = E.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else E.COORDINATOR_NOT_AVAILABLE
            assert await codes(version, peer.begin(version, group="loading")) == [loading]
            assert await codes(version, peer.begin(version, group="")) == [E.INVALID_GROUP_ID]

    asyncio.run(main())


def test_what_does_not_exist_and_what_is_not_allowed() -> None:
    def denies(_operation: Any, kind: ResourceType, name: str) -> bool:
        return name == "secret" or (kind is ResourceType.TRANSACTIONAL_ID and name == "theirs")

    async def main() -> None:
        peer = Peer(Denying(denies))
        topics = {"secret": (0,), "none": (0, 1), "t": (2, 3)}
        answer = peer.begin(3, topics=topics)
        peer.coordinator_says(E.NONE)
        denied, unknown = E.TOPIC_AUTHORIZATION_FAILED, E.UNKNOWN_TOPIC_OR_PARTITION
        assert await codes(3, answer) == [denied, unknown, unknown, E.NONE, unknown]
        # Where nothing is left, nobody is asked.
        other = (9, 0)
        assert await codes(3, peer.begin(3, topics={"none": (0,)}, producer=other)) == [unknown]
        refused = peer.begin(3, transactional_id="theirs", producer=other)
        assert await codes(3, refused) == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        assert await codes(3, peer.begin(3, group="secret")) == [E.GROUP_AUTHORIZATION_FAILED]
        assert peer.asked == []

    asyncio.run(main())


def test_verification_can_be_switched_off_for_producers_that_add_partitions_themselves() -> None:
    async def main() -> None:
        peer = Peer(verifies=False)
        assert await codes(4, peer.begin(4)) == [E.NONE]
        assert peer.asked == []
        other = (9, 0)
        peer.begin(5, producer=other)
        assert [adds for _, adds, _ in peer.asked] == [True]

    asyncio.run(main())


def test_stable_offsets_in_every_version() -> None:
    async def main() -> None:
        low, high = SUPPORTED[ApiKey.OFFSET_FETCH]
        for version in range(low, high + 1):
            peer = Peer()
            peer.rig.commit("g", "", -1, {("t", 0): 1, ("t", 1): 1})
            peer.begin(3, 5)
            peer.coordinator_says(E.NONE)
            plain = {0: (1, E.NONE), 1: (1, E.NONE), 2: (-1, E.NONE)}
            assert await peer.fetch(version, stable=False) == plain
            unstable = (-1, E.UNSTABLE_OFFSET_COMMIT) if version >= 7 else (1, E.NONE)
            assert await peer.fetch(version) == plain | {0: unstable}
            peer.rig.log.hold = True
            peer.rig.commit("g", "", -1, {("t", 1): 2})
            waits = asyncio.ensure_future(peer.fetch(version))
            await asyncio.sleep(0)
            assert waits.done() == (version < 7)
            peer.rig.log.advance()
            assert (await waits)[1] == ((2, E.NONE) if version >= 7 else (1, E.NONE))
            peer.rig.log.hold = False
            peer.mark(commits=True)
            assert (await peer.fetch(version))[0] == (5, E.NONE)

    asyncio.run(main())
