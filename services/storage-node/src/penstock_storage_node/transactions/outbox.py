"""Markers on their way: what the coordinators of this node have decided, to the leader of each partition.

It is told what is due and what is withdrawn, answers, lost streams and new metadata; it says what to send to which
node, and which partitions have their marker. Markers that are ready go together, one message for each node and turn.
A marker is tried for ever:

* without a leader it waits for newer metadata, and a partition that these do not know is done: it was deleted (or
  may be there all the same, in metadata that were restored: then it waits as well);
* an error, or the loss of the stream that it went by, brings it to the leader of a moment later. Written twice it does
  no harm;
* INVALID_PRODUCER_EPOCH is done as well: that log has a newer epoch of the producer, so this transaction has ended
  there (Kafka lets the id hang until its coordinator is loaded anew: KAFKA-19999);
* TRANSACTION_COORDINATOR_FENCED: the leader knows a newer coordinator, of which this one hears too, and withdraws what
  it has due. Until then it tries again; Kafka forgets the marker until the coordinator is loaded anew.

Source: TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.ids import NodeId
from penstock_storage_node.timers import Timer, TimerQueue
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName

AGAIN_MS_MIN: Final = 20
AGAIN_MS_MAX: Final = 1_000
"""Between two tries of a marker: twice as long each time."""
SENT_AT_ONCE_MAX: Final = 5_000
"""Partitions in one message."""


class Place(Enum):
    """Where no marker can be sent."""

    NO_LEADER = "no leader"
    """For now: it waits."""
    GONE = "gone"
    """The metadata do not know the partition: it needs no marker."""


class Key(NamedTuple):
    """Names a decision: no other with the same is under way."""

    state_partition: int
    coordinator_epoch: int
    producer_id: int
    producer_epoch: int

    @property
    def coordinator(self) -> tuple[int, int]:
        """Which one decided."""
        return self.state_partition, self.coordinator_epoch


class Marker(NamedTuple):
    """To be written to some partitions of one node."""

    due: MarkersDue
    partitions: tuple[TopicPartitionName, ...]


class _Item(NamedTuple):
    key: Key
    partition: TopicPartitionName


@dataclass(slots=True)
class _Due:
    due: MarkersDue
    left: set[TopicPartitionName]
    tries: dict[TopicPartitionName, int] = field(default_factory=dict)
    fenced: dict[TopicPartitionName, int] = field(default_factory=dict)
    """How often a partition's leader has named a newer coordinator."""


def key_of(due: MarkersDue) -> Key:
    """Its name in answers."""
    return Key(due.state_partition, due.coordinator_epoch, due.producer_id, due.producer_epoch)


class Outbox:
    """Of one node; see the module's text."""

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int],
        leader_of: Callable[[TopicPartitionName], NodeId | Place],
        send: Callable[[NodeId, Sequence[Marker]], None],
        written: Callable[[Key, Sequence[TopicPartitionName]], None],
        schedule: Callable[[], None],
    ) -> None:
        """`leader_of` goes by the newest metadata, `send` puts a message on the stream to a node (this one has none to
        itself: then it is done at once), `written` tells the shard that asked, `schedule` asks for `end_turn`."""
        self._clock_ms = clock_ms
        self._leader_of = leader_of
        self._send = send
        self._written = written
        self._schedule = schedule
        self._due: dict[Key, _Due] = {}
        self._ready: dict[_Item, None] = {}
        self._leaderless: dict[_Item, None] = {}
        self._later: dict[_Item, Timer] = {}
        self._sent: dict[NodeId, dict[_Item, None]] = {}
        self._timers: Final = TimerQueue()
        self.ended_elsewhere_count = 0
        """Markers that met a newer epoch of their producer."""
        self.fenced_count = 0
        """Markers that met one of a newer coordinator twice, so that this one has not heard of it for a second; each
        counts once, however often it is sent again."""

    # -- what is to be done ----------------------------------------------------------------------

    def add(self, due: MarkersDue) -> None:
        """A decision: its markers are to be written."""
        key = key_of(due)
        if key in self._due:
            raise InvariantBroken(f"{key} is due twice")
        self._due[key] = _Due(due, set(due.partitions))
        self._ready.update(dict.fromkeys(_Item(key, partition) for partition in due.partitions))
        self._schedule()

    def withdraw(self, withdrawn: MarkersWithdrawn) -> None:
        """That coordinator is none any more: the next one sends them again."""
        coordinator = withdrawn.state_partition, withdrawn.coordinator_epoch
        for key in [key for key in self._due if key.coordinator == coordinator]:
            for partition in self._due.pop(key).left:
                self._take_out(_Item(key, partition))

    def _take_out(self, item: _Item) -> None:
        self._ready.pop(item, None)
        self._leaderless.pop(item, None)
        if (timer := self._later.pop(item, None)) is not None:
            timer.cancel()
        for sent in self._sent.values():
            sent.pop(item, None)

    def end_turn(self) -> None:
        """Send what is ready."""
        ready, self._ready = self._ready, {}
        by_node: dict[NodeId, list[_Item]] = defaultdict(list)
        gone: list[_Item] = []
        for item in ready:
            place = self._leader_of(item.partition)
            if place is Place.GONE:
                gone.append(item)
            elif place is Place.NO_LEADER:
                self._leaderless[item] = None
            else:
                by_node[place].append(item)
        for node, items in by_node.items():
            self._sent.setdefault(node, {}).update(dict.fromkeys(items))
        for node, items in by_node.items():
            for at in range(0, len(items), SENT_AT_ONCE_MAX):
                # A leader on this node answers while it is sent, and may end a coordinator; a stream may be lost.
                sent = self._sent.get(node, {})
                left = [item for item in items[at : at + SENT_AT_ONCE_MAX] if item in sent]
                if left:
                    self._send(node, self._markers(left))
        self._done(gone)

    def _markers(self, items: Iterable[_Item]) -> list[Marker]:
        by_key: dict[Key, list[TopicPartitionName]] = defaultdict(list)
        for item in items:
            by_key[item.key].append(item.partition)
        return [Marker(self._due[key].due, tuple(found)) for key, found in by_key.items()]

    # -- what became of it -----------------------------------------------------------------------

    def answered(
        self, node: NodeId, key: Key, answers: Iterable[tuple[TopicPartitionName, ErrorCode]]
    ) -> None:
        """A leader's answers, by the stream that is open now. What was not asked there is passed over."""
        sent = self._sent.get(node, {})
        done: list[_Item] = []
        for partition, code in answers:
            item = _Item(key, partition)
            if item not in sent:
                continue
            del sent[item]
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                self._note_fenced(item)
                self._try_later(item, AGAIN_MS_MAX)
            elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
                self.ended_elsewhere_count += 1
                done.append(item)
            elif code is ErrorCode.NONE:
                done.append(item)
            else:
                self._try_later(item)
        self._done(done)

    def stream_lost(self, node: NodeId) -> None:
        """Nothing more comes by the stream to a node: what was on its way is sent again, to whoever leads then."""
        for item in self._sent.pop(node, {}):
            self._try_later(item)

    def metadata_changed(self) -> None:
        """What waits for a leader is looked at again."""
        if self._leaderless:
            self._ready.update(self._leaderless)
            self._leaderless = {}
            self._schedule()

    def _note_fenced(self, item: _Item) -> None:
        fenced = self._due[item.key].fenced
        times = fenced[item.partition] = fenced.get(item.partition, 0) + 1
        # Once is what every move of a coordinator does to markers on their way: leaders may know of it a little sooner.
        if times == 2:
            self.fenced_count += 1

    def _try_later(self, item: _Item, wait_ms: int | None = None) -> None:
        tries = self._due[item.key].tries
        count = tries[item.partition] = tries.get(item.partition, 0) + 1
        timer = self._later[item] = Timer("again", (item,))
        if wait_ms is None:
            wait_ms = min(AGAIN_MS_MIN << min(count - 1, 10), AGAIN_MS_MAX)
        self._timers.set(timer, self._clock_ms() + wait_ms)

    def _done(self, items: Iterable[_Item]) -> None:
        by_key: dict[Key, list[TopicPartitionName]] = defaultdict(list)
        for item in items:
            by_key[item.key].append(item.partition)
        for key, partitions in by_key.items():
            due = self._due.get(key)
            if due is None:
                continue  # dropped by what was told just now
            due.left.difference_update(partitions)
            if not due.left:
                del self._due[key]
            self._written(key, partitions)

    # -- time ------------------------------------------------------------------------------------

    @property
    def next_timer_ms(self) -> int:
        """`tick` has nothing to do before that time."""
        return self._timers.next_ms

    def tick(self) -> None:
        """What was to be tried again is ready."""
        now_ms = self._clock_ms()
        while (timer := self._timers.due(now_ms)) is not None:
            (item,) = timer.owner
            if self._later.get(item) is timer:
                del self._later[item]
                self._ready[item] = None
        if self._ready:
            self._schedule()

    # -- for metrics and tests -------------------------------------------------------------------

    def waiting(self) -> dict[NodeId | None, int]:
        """Markers that are sent and not answered, by node; None: not sent."""
        found: dict[NodeId | None, int] = {node: len(sent) for node, sent in self._sent.items() if sent}
        idle = len(self._ready) + len(self._leaderless) + len(self._later)
        return found | {None: idle} if idle else found

    def validate(self) -> None:
        """Raises InvariantBroken unless each marker that is due is in one place."""
        places = [*self._ready, *self._leaderless, *self._later]
        places += [item for sent in self._sent.values() for item in sent]
        wanted = {_Item(key, partition) for key, due in self._due.items() for partition in due.left}
        if len(places) != len(set(places)) or set(places) != wanted:
            raise InvariantBroken(f"{len(wanted)} markers are due, {len(places)} are somewhere")
